"""What a machine must have before an engine starts on it, checked before anything is loaded."""
