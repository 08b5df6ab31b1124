"""The instruction families of gfx950: each module binds its instructions to functions on a WaveBatch."""
