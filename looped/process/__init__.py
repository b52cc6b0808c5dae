"""What is set up once a process: JAX's options, the compilation cache, the file limit, logs."""
