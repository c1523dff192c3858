"""The gRPC control service of every component: definitions, server with health and reflection, clients."""
