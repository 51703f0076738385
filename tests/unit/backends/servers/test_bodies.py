"""Certificates of the clients of servers."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from support.needs import packages

from icl_bench.backends.servers.bodies import limited, limited_blocking

packages("openai")

import openai  # noqa: E402


def test_clients_share_certificates_which_are_loaded_anew_where_the_environment_names_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    used: list[Any] = []
    monkeypatch.setattr(openai.DefaultHttpxClient, "__init__", lambda _self, *, verify: used.append(verify))
    monkeypatch.setattr(openai.DefaultAsyncHttpxClient, "__init__", lambda _self, *, verify: used.append(verify))
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    limited(openai.DefaultAsyncHttpxClient)
    limited_blocking(openai.DefaultHttpxClient)
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    limited_blocking(openai.DefaultHttpxClient)
    assert used[0] is used[1]
    assert used[2] is not used[0]
    assert {each.verify_mode for each in used} == {ssl.CERT_REQUIRED}
    assert all(each.check_hostname for each in used)
    assert not used[2].get_ca_certs()
