"""Who somebody is: credentials checked, and credentials shown. Shared by brokers, proxies and their clients."""
