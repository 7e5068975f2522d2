"""What happens to this host and its GPUs beside Takt: seen from a process that owes no verdict."""
