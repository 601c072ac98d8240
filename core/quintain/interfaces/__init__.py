"""What a plugin implements: environments, rewards, tools, engines, services, algorithms."""
