"""`llamba serve`: its command line, and the places it must work in."""

import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
from click.core import ParameterSource

from llamba.cli import loading, serve
from llamba.cli.main import cli
from llamba.cli.server import run_server
from llamba.cli.server.served import ModelEntry
from llamba.cli.server.settings import ServerSettings
from llamba.errors import InvalidParameterError, ModelNotFoundError, ResourceError
from llamba.models import store

Invoke = Callable[..., Any]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[ServerSettings]:
    """The settings of the servers that were started, which end at once."""
    found: list[ServerSettings] = []

    def run(settings: ServerSettings, **_: Any) -> int:
        found.append(settings)
        return 0

    monkeypatch.setattr(run_server, "run", run)
    monkeypatch.setattr(loading, "find", lambda name: Path("/models") / f"{Path(name).stem}.gguf")
    monkeypatch.setattr(store, "list_models", lambda: ["one"])
    return found


def test_options_become_settings(
    invoke: Invoke, started: list[ServerSettings], tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("two # not a comment\n# a comment\nthree\n")
    result = invoke(
        "serve", "smollm2", "big=./x/large.gguf", "/y/other.gguf", "--alias", "gpt-4o=big",
        "--host", "0.0.0.0", "--port", "0", "--api-key", "one", "--api-key-file", str(keys),
        "--allow-host", "a", "--allow-host", "b", "--allow-origin", "https://c",
        "-t", "2", "-c", "4096", "--cache-type", "q8_0", "-np", "4", "--kv-tokens", "9000",
        "--keep-alive", "5m", "--memory-limit", "6G", "--max-queue", "3", "--timeout", "90",
        "--max-body", "2MiB", "--shutdown-grace", "1.5s", "--strict", "--merge-roles", "--no-web",
        "--log-file", str(tmp_path / "log"), "--no-access-log",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    [settings] = started
    assert settings == ServerSettings(
        host="0.0.0.0",
        port=0,
        allowed_hosts=("a", "b"),
        allowed_origins=("https://c",),
        api_keys=("one", "two # not a comment", "three"),
        models={
            "smollm2": "/models/smollm2.gguf",
            "big": "/models/large.gguf",
            "other": "/models/other.gguf",
        },
        aliases={"gpt-4o": "big"},
        engine={
            "num_threads": 2,
            "context_length": 4096,
            "cache_type": "q8_0",
            "kv_tokens": 9000,
            "max_sequences": 4,
        },
        idle_unload_s=300,
        memory_limit=6 << 30,
        max_queue=3,
        request_timeout_s=90,
        max_body_bytes=2 << 20,
        shutdown_grace_s=1.5,
        strict=True,
        merge_roles=True,
        web=False,
        log_file=tmp_path / "log",
        access_log=False,
    )


def test_defaults(invoke: Invoke, started: list[ServerSettings]) -> None:
    assert invoke("serve", "--keep-alive", "never", "--timeout", "-1").exit_code == 0
    assert invoke("serve", "--keep-alive", "0").exit_code == 0
    never, at_once = started
    assert never.idle_unload_s is None and never.request_timeout_s is None
    assert at_once.idle_unload_s == 0
    assert (never.host, never.port, never.models) == ("127.0.0.1", 8080, {})


def test_an_empty_cache_serves_the_default_model(
    invoke: Invoke, started: list[ServerSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "list_models", lambda: [])
    result = invoke("serve")
    assert result.exit_code == 0
    assert result.stderr == (
        "no model is named, and the cache has none: fetching smollm2 to serve it\n"
    )
    assert dict(started[0].models) == {"smollm2": "/models/smollm2.gguf"}


def test_environment(
    invoke: Invoke, started: list[ServerSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMBA_SERVE_PORT", "8081")
    monkeypatch.setenv("LLAMBA_SERVE_HOST", "::1")
    monkeypatch.setenv("LLAMBA_SERVE_NO_WEB", "1")
    monkeypatch.setenv("LLAMBA_SERVE_MODELS", "smollm2 a=b.gguf")
    monkeypatch.setenv("LLAMBA_API_KEY", "one, two")
    assert invoke("serve").exit_code == 0
    [settings] = started
    assert (settings.host, settings.port, settings.web) == ("::1", 8081, False)
    assert list(settings.models) == ["smollm2", "a"] and settings.api_keys == ("one", "two")


def variables() -> list[tuple[str, str]]:
    """(option, variable) of each spelling of each option."""
    found: list[tuple[str, str]] = []
    for param in serve.command.params:
        if isinstance(param, click.Option):
            for spelling in (*param.opts, f"--{param.name}"):
                name = spelling.lstrip("-").replace("-", "_").upper()
                found.append((param.name or "", f"LLAMBA_SERVE_{name}"))
    return found


@pytest.mark.parametrize(("option", "variable"), sorted(set(variables())))
def test_every_spelling_is_a_variable(
    option: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    param = next(each for each in serve.command.params if each.name == option)
    assert isinstance(param, click.Option)
    values: dict[str, str] = {
        "integer": "3",
        "SIZE": "6G",
        "TIME": "5m",
        "DEVICE": "cpu",
        "N|auto|all": "2",
        "boolean": "1",
        "choice": "q8_0" if option == "cache_type" else "float32",
        "path": __file__,
        "file": __file__,
    }
    text = "one two" if param.multiple else values.get(param.type.name, "text")
    monkeypatch.setenv(variable, text)
    context = serve.command.make_context("serve", [])
    assert context.get_parameter_source(option) is ParameterSource.ENVIRONMENT
    if param.multiple:
        assert context.params[option] == ("one", "two")
    else:
        assert context.params[option] not in (None, False)


def test_the_command_line_comes_before_variables(
    invoke: Invoke, started: list[ServerSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMBA_SERVE_API_KEY", "one two")
    monkeypatch.setenv("LLAMBA_SERVE_MAX_SEQUENCES", "3")
    assert invoke("serve").exit_code == 0
    assert invoke("serve", "--api-key", "three", "-np", "4").exit_code == 0
    first, second = started
    assert first.api_keys == ("one", "two") and first.engine == {"max_sequences": 3}
    assert second.api_keys == ("three",) and second.engine == {"max_sequences": 4}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"LLAMBA_SERVE_APIKEY": "x"}, "no such variable; the nearest is LLAMBA_SERVE_API_KEY"),
        ({"LLAMBA_SERVE_MODEL": "x"}, "no such variable; the nearest is LLAMBA_SERVE_MODELS"),
        ({"LLAMBA_SERVE_HELP": "1"}, "LLAMBA_SERVE_HELP: no such variable"),
        ({"LLAMBA_SERVE_API_KEY": ""}, "LLAMBA_SERVE_API_KEY is empty"),
        ({"LLAMBA_SERVE_API_KEYS": " "}, "LLAMBA_SERVE_API_KEYS is empty"),
        ({"LLAMBA_SERVE_PARALLEL": "1", "LLAMBA_SERVE_NP": "2"}, "give one of them"),
        ({"LLAMBA_SERVE_NO_WEB": "perhaps"}, "--no-web"),
        ({"LLAMBA_SERVE_PORT": "tcp://10.0.0.1"}, "--port"),
        ({"LLAMBA_API_KEY": " , "}, "LLAMBA_API_KEY holds no key"),
    ],
)
def test_wrong_variables_stop_the_start(
    invoke: Invoke,
    started: list[ServerSettings],
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, str],
    text: str,
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    result = invoke("serve")
    assert result.exit_code == 2 and not started
    assert text in result.stderr and result.stderr.count("\n") == 1
    assert invoke("serve", "--help").exit_code == 0


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--port", "99999"], "--port 99999: must be from 0 (any free) to 65535"),
        (["--max-queue", "-1"], "--max-queue -1: must not be negative"),
        (["--memory-limit", "much"], "'much' is not a size such as 6G"),
        (["--memory-limit", "0"], "'0' is not a size"),
        (["--keep-alive", "soon"], "'soon' is not a time such as"),
        (["--tls-cert", __file__], "give both"),
        (["--alias", "x"], "--alias 'x': write NAME=MODEL"),
        (["a", "a"], "two models of this name"),
        (["a="], "write NAME=MODEL"),
        (["--api-key", ""], "--api-key '': an empty key would let everybody in"),
        (["--api-key", " "], "--api-key '': an empty key would let everybody in"),
        (["--timeout", "0"], "'--timeout': '0' must be more than 0; `never` is no limit"),
        (["--timeout", "0.0s"], "'--timeout': '0.0s' must be more than 0"),
    ],
)
def test_wrong_options_are_one_line(
    invoke: Invoke, started: list[ServerSettings], args: list[str], text: str
) -> None:
    result = invoke("serve", *args)
    assert result.exit_code == 2 and not started
    assert text in result.stderr and result.stderr.count("\n") == 1


def test_a_missing_extra_is_one_line(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith("llamba.cli.server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = invoke("serve", "smollm2")
    assert result.exit_code == 1
    assert result.stderr == f"error: {serve.MISSING}\n"


def test_help_needs_no_extra() -> None:
    code = (
        "import sys; from llamba.cli.main import cli\n"
        "try: cli.main(['serve', '--help'], prog_name='llamba')\n"
        "except SystemExit: print([m for m in ('fastapi', 'uvicorn', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_names_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a=b.gguf").touch()
    for text, name in {
        "smollm2": "smollm2",
        "./dir/Model.Q4.gguf": "Model.Q4",
        "hf:owner/repo:Q4_K_M": "hf:owner/repo:Q4_K_M",
        "mine=hf:owner/repo": "mine",
        "a=b.gguf": "a=b",
        "../x/y=z.gguf": "y=z",
    }.items():
        assert serve._name_and_model(text)[0] == name, text
    assert "serve" in cli.list_commands(None)  # type: ignore[arg-type]


# -- the socket -----------------------------------------------------------------------------------
def test_an_address_in_use_is_one_line(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "find", Path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = ServerSettings(port=port)
        with pytest.raises(ResourceError, match=f"127.0.0.1:{port} is taken by another program"):
            run_server.bind(settings)
        done = subprocess.run(
            [sys.executable, "-m", "llamba", "serve", __file__, "--port", str(port)],
            capture_output=True,
            text=True,
        )
    assert done.returncode == ResourceError.exit_code
    assert done.stderr.count("\n") == 1 and "is taken" in done.stderr


def test_addresses_that_are_not_ours() -> None:
    with pytest.raises(ResourceError, match="can't listen at"):
        run_server.bind(ServerSettings(host="192.0.2.1", port=0))
    with pytest.raises(ResourceError, match="can't listen at"):
        run_server.bind(ServerSettings(host="no.such.host.invalid", port=0))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "::1", "::"])
def test_hosts_are_bound_with_one_port(host: str) -> None:
    try:
        sockets = run_server.bind(ServerSettings(host=host, port=0))
    except ResourceError as error:
        pytest.skip(f"this machine has no such address: {error}")
    assert len({each.getsockname()[1] for each in sockets}) == 1
    for each in sockets:
        each.close()


def test_urls() -> None:
    assert run_server.url_of(ServerSettings(host="::1"), 80) == "http://[::1]:80"
    with pytest.raises(InvalidParameterError, match="--tls-cert"):
        run_server.check_tls(ServerSettings(tls_cert=Path(__file__), tls_key=Path(__file__)))


@pytest.mark.kernels
def test_tls(tmp_path: Path, serve: Callable[..., Any], tiny_gguf: Callable[..., Path]) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate, and is not installed")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
        + ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
        + ["-keyout", str(key), "-out", str(cert)],
        check=True,
        capture_output=True,
    )
    path = str(tiny_gguf(weights="Q4_K"))
    server = serve(models={"tiny": path}, tls_cert=cert, tls_key=key)
    assert server.url.startswith("https://")
    trusted = ssl.create_default_context(cafile=str(cert))
    with httpx.Client(base_url=server.url, verify=trusted, timeout=60) as client:
        assert client.get("/health").json() == {"status": "ok"}
        body = {"prompt": "hello", "max_tokens": 3, "stream": True}
        assert client.post("/v1/completions", json=body).text.endswith("data: [DONE]\n\n")


# -- whole processes ------------------------------------------------------------------------------
@pytest.mark.kernels
def test_a_server_from_its_start_to_its_end(
    spawn: Callable[..., Any], tiny_gguf: Callable[..., Path], tmp_path: Path
) -> None:
    log = tmp_path / "requests.log"
    server = spawn(
        f"tiny={tiny_gguf(weights='Q4_K')}",
        *("--port", "0", "--log-file", str(log), "--host", "0.0.0.0"),
        env={"LLAMBA_API_KEY": "sekret"},
    ).wait_ready()
    port = server.url.rpartition(":")[2]
    assert port != "0"
    sizes = r"^tiny: context 256 tokens, 16 answers at once, \d+ threads?$"
    assert re.search(sizes, server.said(), re.MULTILINE)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        assert client.get("/health").status_code == 200
        assert client.get("/v1/models").status_code == 401
        found = client.get("/v1/models", headers={"Authorization": "Bearer sekret"})
        assert found.json()["data"][0]["id"] == "tiny"
    assert server.stop() == 0
    assert "sekret" not in server.said() and "warning" not in server.said()
    requests = [line for line in log.read_text().splitlines() if '"status"' in line]
    assert len(requests) == 2 and "sekret" not in log.read_text()


@pytest.mark.kernels
def test_the_ready_line_names_aliases(
    spawn: Callable[..., Any], tiny_gguf: Callable[..., Path]
) -> None:
    path = tiny_gguf(weights="Q4_K")
    server = spawn(
        *(f"tiny={path}", f"other={path}", "--alias", "gpt-4o=tiny", "--alias", "gpt-4=tiny"),
        *("--port", "0"),
    ).wait_ready()
    assert f"llamba serves tiny (also gpt-4o, gpt-4), other at {server.url}\n" in server.said()
    assert server.stop() == 0


def test_many_names_are_counted() -> None:
    entry = ModelEntry("a", None, 0, 0, None, False, None, ())
    assert run_server._names([entry] * 7) == "a, a, a, a, a, and 2 more"
    assert run_server._names([]) == "no model yet"


@pytest.mark.kernels
def test_an_open_server_without_keys_is_warned_about(
    spawn: Callable[..., Any], tiny_gguf: Callable[..., Path]
) -> None:
    server = spawn(str(tiny_gguf(weights="Q4_K")), "--port", "0", "--host", "0.0.0.0").wait_ready()
    assert "warning: everybody who can reach" in server.said() and "--api-key" in server.said()
    assert server.stop() == 0


def test_a_model_that_can_not_be_loaded_ends_it(spawn: Callable[..., Any], tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"nonsense")
    server = spawn(str(bad), "--port", "0")
    assert server.process.wait(60) == 4
    lines = server.said().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and "bad.gguf" in lines[0]
    server = spawn("/nowhere/x.gguf", "--port", "0")
    assert server.process.wait(60) == ModelNotFoundError.exit_code


# -- P71: service users ---------------------------------------------------------------------------
NO_HOME = {"HOME": None, "XDG_CACHE_HOME": None, "USER": None, "LOGNAME": None}


def users_cache() -> str:
    """Where this user's kernels are."""
    from llamba.quant.kernel_cache import cache_root

    return str(cache_root().parent)


@pytest.mark.kernels
@pytest.mark.parametrize("home", [None, "/proc/none", "/"])
def test_p71_no_home_with_the_cache_elsewhere(
    home: str | None, spawn: Callable[..., Any], tiny_gguf: Callable[..., Path]
) -> None:
    env = {**NO_HOME, "HOME": home, "LLAMBA_CACHE": users_cache()}
    server = spawn(f"tiny={tiny_gguf(weights='Q4_K')}", "--port", "0", env=env).wait_ready()
    body = {"prompt": "hello", "max_tokens": 2}
    assert httpx.post(server.url + "/v1/completions", json=body, timeout=60).status_code == 200
    assert server.stop() == 0
    assert "warning" not in server.said()


@pytest.mark.slow
@pytest.mark.kernels
def test_p71_a_cache_that_can_not_be_written(
    spawn: Callable[..., Any], tiny_gguf: Callable[..., Path]
) -> None:
    env = {**NO_HOME, "LLAMBA_CACHE": "/proc/none"}
    path = tiny_gguf(weights="Q4_K")
    server = spawn(f"tiny={path}", "--port", "0", "-np", "1", env=env).wait_ready(600)
    body = {"prompt": "hello", "max_tokens": 2}
    assert httpx.post(server.url + "/v1/completions", json=body, timeout=60).status_code == 200
    assert server.stop() == 0
    assert "Set LLAMBA_CACHE to a writable folder" in server.said()


@pytest.mark.skipif(os.name != "posix", reason="needs /proc")
def test_p71_no_model_and_no_place_for_one_is_one_line(spawn: Callable[..., Any]) -> None:
    server = spawn("--port", "0", env={**NO_HOME, "LLAMBA_CACHE": "/proc/none"})
    assert server.process.wait(60) != 0
    lines = server.said().splitlines()
    assert lines[-1].startswith("error: ") and "LLAMBA_CACHE" in lines[-1], lines
