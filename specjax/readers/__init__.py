"""Reading what servers and load generators of other engines print; one small file per format."""
