"""The command line ``tfm-lab``: ``main`` holds the group, every other module one command."""
