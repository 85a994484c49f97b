"""What this machine is: cores, memory, GPUs, caches and links, and what DeepSpeed needs of its
compiler."""
