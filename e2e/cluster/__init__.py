"""A whole cluster as processes on this machine: ZooKeeper, bookies, brokers, proxies; what can go wrong in one."""
