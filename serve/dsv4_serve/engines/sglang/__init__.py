"""SGLang's plugin: what runs inside the processes of the published engine, by hooks and without a fork."""
