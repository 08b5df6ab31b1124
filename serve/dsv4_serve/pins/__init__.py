"""versions.lock: read it, check it, fill it. Stands on the standard library, so that a bare image can check itself."""
