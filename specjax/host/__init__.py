"""What touches the machine: files, processes, Python environments, the compile cache."""
