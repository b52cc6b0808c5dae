"""Where a server listens: taken before its model is read, silent until it is ready."""

import contextlib
import errno
import shutil
import socket

import pytest
from command_line import looped

from looped.errors import LoopedError
from looped.server.listening import allow_listening, taken_sockets

HERE = "127.0.0.1"


@pytest.fixture(scope="module")
def unreadable(tiny_folder, tmp_path_factory):
    """A model whose weights are none: whoever opens them says so."""
    folder = tmp_path_factory.mktemp("model")
    shutil.copytree(tiny_folder, folder, dirs_exist_ok=True)
    for weights in folder.glob("*.safetensors"):
        weights.write_bytes(b"no weights")
    return folder


@contextlib.contextmanager
def listening_port():
    with socket.create_server((HERE, 0)) as other:
        yield other.getsockname()[1]


@contextlib.contextmanager
def loading_port():
    with taken_sockets(HERE, 0) as sockets:
        yield sockets[0].getsockname()[1]


@pytest.mark.parametrize("other", [listening_port, loading_port])
def test_a_port_in_use_is_said_before_weights_are_read(unreadable, tmp_path, other):
    log = tmp_path / "log.jsonl"
    with other() as port:
        done = looped(
            *("serve", "--model", unreadable, "--port", port, "--launch-log", log), check=False
        )
    assert done.returncode == 1
    assert done.stderr == (
        f"looped: error: cannot listen at {HERE}:{port}: the port is in use; stop what has it, or "
        "choose another with --port\n"
    )
    assert not log.exists()
    assert looped("serve", "--model", unreadable, "--port", 0, check=False).returncode == 1


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("192.0.2.1", "192.0.2.1:8000: the address is not one of this machine's"),
        ("2001:db8::1", "[2001:db8::1]:8000: "),
        ("a..b", "--host a..b: expected an address or a name of this machine"),
    ],
)
def test_an_address_that_is_not_here_is_said_before_weights_are_read(unreadable, host, said):
    done = looped("serve", "--model", unreadable, "--host", host, check=False)
    assert done.returncode == 1
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_clients_are_refused_until_it_listens():
    with taken_sockets(HERE, 0) as (taken,), socket.socket() as client:
        address = taken.getsockname()
        assert client.connect_ex(address) == errno.ECONNREFUSED
        allow_listening([taken])
        taken.listen()
        with socket.create_connection(address):
            pass


def test_connections_that_linger_do_not_keep_the_next_server_away():
    with taken_sockets(HERE, 0) as (taken,):
        port = taken.getsockname()[1]
        allow_listening([taken])
        taken.listen()
        with socket.create_connection((HERE, port)) as client:
            taken.accept()[0].close()  # the end that closes first lingers
            assert client.recv(1) == b""
    with taken_sockets(HERE, port) as (again,):
        assert again.getsockname()[1] == port
        with pytest.raises(LoopedError, match="in use"), taken_sockets(HERE, port):
            pass


def test_all_addresses_of_a_name_have_one_port():
    with taken_sockets("localhost", 0) as sockets:
        assert len({taken.getsockname()[1] for taken in sockets}) == 1
