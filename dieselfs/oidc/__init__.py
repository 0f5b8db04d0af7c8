"""OpenID Connect: what clients and servers ask a provider."""
