"""The swarm: node processes, and Locust clients in processes of their own, all children of one runner."""
