"""What the simulated API server stores: objects, what it adds to them and refuses, who owns them."""
