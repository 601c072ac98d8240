"""The HTTP API of Tinker's SDK over one model: adapters of many tenants, trained and sampled."""
