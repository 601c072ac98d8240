"""Names to configured components: discovery, manifests, binding, hooks."""
