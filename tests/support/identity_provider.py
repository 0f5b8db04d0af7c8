"""An OpenID Connect provider for tests: Authlib's server of OAuth 2, over HTTPS on this machine."""

import json
import secrets
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl

from authlib.oauth2.rfc6749 import (
    AuthorizationServer,
    ClientMixin,
    OAuth2Request,
    TokenMixin,
)
from authlib.oauth2.rfc6749.grants import ClientCredentialsGrant, RefreshTokenGrant
from authlib.oauth2.rfc6749.requests import BasicOAuth2Payload
from authlib.oauth2.rfc8628 import DeviceAuthorizationEndpoint, DeviceCodeGrant
from joserfc import jwt
from joserfc.jwk import ECKey

from tests.support.certificates import make_certificate

SCOPES = ["openid", "profile", "groups", "offline_access"]
TOKEN_S = 300


@dataclass
class _Client(ClientMixin):
    client_id: str
    secret: str = ""

    def get_client_id(self) -> str:
        return self.client_id

    def get_allowed_scope(self, scope: str) -> str:
        return scope

    def check_client_secret(self, client_secret: str) -> bool:
        return bool(self.secret) and secrets.compare_digest(self.secret, client_secret)

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method == ("client_secret_basic" if self.secret else "none")

    def check_grant_type(self, grant_type: str) -> bool:
        return bool(self.secret) == bool(grant_type == ClientCredentialsGrant.GRANT_TYPE)


@dataclass
class _Issued(TokenMixin):
    client_id: str
    user: dict[str, Any]

    def check_client(self, client: _Client) -> bool:
        return self.client_id == client.client_id

    def get_scope(self) -> str:
        return " ".join(SCOPES)


@dataclass
class IdentityProvider:
    """`person`: the claims of the user that enters the next code; None refuses it. `pending`: questions before that.
    `refreshes`: the tokens of refresh that count. `is_away`: it answers nothing but errors.
    """

    issuer: str = ""
    authority: Path = Path()
    person: dict[str, Any] | None = None
    pending: int = 0
    clients: dict[str, _Client] = field(default_factory=dict)
    refreshes: dict[str, _Issued] = field(default_factory=dict)
    codes: dict[str, "_Code"] = field(default_factory=dict)
    is_away: bool = False
    asked: list[str] = field(default_factory=list)
    """Paths of requests."""
    key: ECKey = field(default_factory=lambda: new_key("one"))

    def token(self, claims: Mapping[str, Any]) -> str:
        """A token of the provider with these claims, and the usual ones unless they are given."""
        now_s = int(time.time())
        usual = {"iss": self.issuer, "aud": "dieselfs", "iat": now_s, "exp": now_s + TOKEN_S}
        token: str = jwt.encode({"alg": "ES256", "kid": self.key.kid}, usual | dict(claims), self.key)
        return token

    def documents(self) -> dict[str, dict[str, Any]]:
        """By path."""
        return {
            "/.well-known/openid-configuration": {
                "issuer": self.issuer,
                "jwks_uri": f"{self.issuer}/keys",
                "token_endpoint": f"{self.issuer}/token",
                "device_authorization_endpoint": f"{self.issuer}/device",
                "scopes_supported": SCOPES,
            },
            "/keys": {"keys": [self.key.as_dict(private=False)]},
        }


def new_key(key_id: str) -> ECKey:
    return ECKey.generate_key("P-256", {"kid": key_id, "use": "sig"})


class _Request(OAuth2Request):
    def __init__(self, uri: str, headers: Mapping[str, str], form: dict[str, str]) -> None:
        super().__init__("POST", uri, headers=headers)
        self.payload = BasicOAuth2Payload(form)

    @property
    def form(self) -> Any:
        return self.payload.data


@dataclass
class _Code:
    client_id: str
    user_code: str

    def get_client_id(self) -> str:
        return self.client_id

    def get_scope(self) -> str:
        return " ".join(SCOPES)

    def get_user_code(self) -> str:
        return self.user_code

    def is_expired(self) -> bool:
        return False


class _Server(AuthorizationServer):
    def __init__(self, provider: IdentityProvider) -> None:
        super().__init__(SCOPES)
        self.provider = provider
        self.register_token_generator("default", self._generate)
        for grant in (_ByCode, _Refresh, _ByPassword):
            self.register_grant(grant)
        self.register_endpoint(_Device)

    def query_client(self, client_id: str) -> _Client | None:
        return self.provider.clients.get(client_id)

    def save_token(self, token: dict[str, Any], request: OAuth2Request) -> None:
        if refresh := token.get("refresh_token"):
            self.provider.refreshes[refresh] = _Issued(request.client.client_id, request.user)

    def create_oauth2_request(self, request: _Request) -> _Request:
        return request

    def handle_response(self, status: int, body: Any, headers: Any) -> tuple[int, Any]:
        return status, body

    def send_signal(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Nobody listens."""

    def _generate(
        self, grant_type: str, client: _Client, user: dict[str, Any] | None = None, **_: object
    ) -> dict[str, Any]:
        token: dict[str, Any] = {"token_type": "Bearer", "expires_in": TOKEN_S}
        if user is None:  # Keycloak names its service accounts so
            name = f"service-account-{client.client_id}"
            access = self.provider.token({"sub": client.client_id, "preferred_username": name})
            return {**token, "access_token": access}
        new = {"access_token": "opaque", "refresh_token": secrets.token_hex(16)}
        return {**token, **new, "id_token": self.provider.token(user)}


class _ByPassword(ClientCredentialsGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_basic",)


class _ByCode(DeviceCodeGrant):
    def query_device_credential(self, device_code: str) -> _Code | None:
        found: _Code | None = self.server.provider.codes.get(device_code)
        return found

    def query_user_grant(self, user_code: str) -> tuple[Any, bool] | None:
        provider = self.server.provider
        if provider.pending:
            provider.pending -= 1
            return None
        return provider.person, provider.person is not None

    def should_slow_down(self, credential: _Code) -> bool:
        return False


class _Refresh(RefreshTokenGrant):
    """Each refresh token counts once, as Keycloak and Dex can have it."""

    INCLUDE_NEW_REFRESH_TOKEN = True
    TOKEN_ENDPOINT_AUTH_METHODS = ("none",)

    def authenticate_refresh_token(self, refresh_token: str) -> _Issued | None:
        found: _Issued | None = self.server.provider.refreshes.pop(refresh_token, None)
        return found

    def authenticate_user(self, refresh_token: _Issued) -> dict[str, Any]:
        return refresh_token.user

    def revoke_old_credential(self, refresh_token: _Issued) -> None:
        """It is gone."""


class _Device(DeviceAuthorizationEndpoint):
    INTERVAL = 1

    def get_verification_uri(self) -> str:
        return f"{self.server.provider.issuer}/enter"

    def save_device_credential(self, client_id: str, scope: str, data: dict[str, Any]) -> None:
        self.server.provider.codes[data["device_code"]] = _Code(client_id, data["user_code"])


@contextmanager
def identity_provider(folder: Path) -> Iterator[IdentityProvider]:
    """A provider until the end of the block, with the public client `dieselfs` and the service `train`."""
    certificate, key = make_certificate(folder, "identity provider")
    provider = IdentityProvider(authority=certificate)
    server = _Server(provider)

    class Handler(BaseHTTPRequestHandler):
        timeout = 10.0

        def do_GET(self) -> None:
            document = provider.documents().get(self.path)
            # As the API server of Kubernetes: its keys have this type alone, and no other one is acceptable.
            if self.path == "/keys" and "application/jwk-set+json" not in self.headers["Accept"]:
                self._answer(406, {})
            else:
                self._answer(404 if document is None else 200, document or {})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            headers = {
                name.title(): value for name, value in self.headers.items()
            }  # as Authlib looks them up
            asked = _Request(provider.issuer + self.path, headers, dict(parse_qsl(body)))
            if self.path == "/token":
                self._answer(*server.create_token_response(asked))
            else:
                self._answer(*server.create_endpoint_response("device_authorization", asked))

        def _answer(self, status: int, body: Any) -> None:
            provider.asked.append(self.path)
            content = json.dumps(body).encode()
            self.send_response(503 if provider.is_away else status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is printed."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        listening.socket = context.wrap_socket(listening.socket, server_side=True)
        provider.issuer = f"https://127.0.0.1:{listening.server_port}"
        provider.clients = {
            each.client_id: each for each in (_Client("dieselfs"), _Client("train", "a-secret"))
        }
        thread = Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        try:
            yield provider
        finally:
            listening.shutdown()
            thread.join()
