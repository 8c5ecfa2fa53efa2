"""The backend against a server that asks for TLS and a token."""

import hashlib
import shutil
import subprocess

import pytest
import torch

import kiln_torch
from conftest import Server
from kiln_torch.settings import Settings


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("the program openssl is not installed")
    folder = tmp_path_factory.mktemp("secure")
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    cert, key = folder / "cert.pem", folder / "key.pem"
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
        *("-subj", "/CN=kilnd", "-addext", names, "-days", "2", "-keyout", key, "-out", cert),
    )
    access = folder / "access"
    access.write_text(f"trainer compile {hashlib.sha256(b'c-secret').hexdigest()}\n")
    access.chmod(0o600)
    flags = [f"--tls-cert={cert}", f"--tls-key={key}", f"--access-file={access}"]
    running = Server(folder / "data", *flags)
    running.folder = folder
    yield running
    assert running.stop() == 0


def _options(secure, **more: object) -> dict[str, object]:
    return {
        "server": "https://" + secure.address.replace("127.0.0.1", "localhost"),
        "tls_ca": str(secure.folder / "cert.pem"),
        "known_servers": str(secure.folder / "known_servers"),
        "fallback": "raise",
        **more,
    }


def _run(options: dict[str, object]) -> None:
    torch._dynamo.reset()
    kiln_torch.reset()
    x = torch.arange(8.0)
    compiled = torch.compile(lambda v: v * 2 + 1, backend="kiln", options=options)
    torch.testing.assert_close(compiled(x), x * 2 + 1)


def test_a_token_opens_the_server(secure):
    _run(_options(secure, token="c-secret"))
    stats = kiln_torch.stats()
    assert not stats["fallbacks"]
    known = (secure.folder / "known_servers").read_text().split()
    assert known[0].startswith("localhost:") and known[1].startswith("ed25519:")


def test_a_wrong_token_is_refused_by_name(secure):
    with pytest.raises(Exception, match="the token is none that this server knows"):
        _run(_options(secure, token="x-secret"))


def test_another_servers_key_is_refused(secure):
    wrong = "ed25519:" + "A" * 43 + "="
    with pytest.raises(Exception, match="which is not the known one"):
        _run(_options(secure, token="c-secret", public_key=wrong))


def test_a_key_beside_the_token_is_the_only_one_that_counts(secure):
    token = secure.folder / "pinned"
    options = _options(secure, token_file=str(token), known_servers=str(secure.folder / "unused"))
    _run(_options(secure, token="c-secret"))
    key = (secure.folder / "known_servers").read_text().split()[1]
    token.write_text(f"c-secret\n{key}\n")
    token.chmod(0o600)
    _run(options)
    assert not kiln_torch.stats()["fallbacks"]
    token.write_text("c-secret\ned25519:" + "A" * 43 + "=\n")
    with pytest.raises(Exception, match=f"which is not the known one.*{token}"):
        _run({**options, "timeout_s": 60})  # other options, so another client
    token.chmod(0o622)
    with pytest.raises(ValueError, match=f"others may write '{token}'"):
        _run({**options, "timeout_s": 61})


def test_the_environment_says_the_same(secure, monkeypatch):
    token = secure.folder / "token"
    token.write_text("c-secret\n")
    for name, value in _options(secure).items():
        monkeypatch.setenv(f"KILN_{name.upper()}", str(value))
    monkeypatch.setenv("KILN_TOKEN_FILE", str(token))
    _run({})
    assert not kiln_torch.stats()["fallbacks"]


def test_a_token_is_not_shown():
    assert "c-secret" not in repr(Settings.read({"token": "c-secret"}))
