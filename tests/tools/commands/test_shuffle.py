"""dlcmd shuffle: the order of the library, as text, bytes and JSON."""

import os

import dieselfs
from dieselfs.config import EMBEDDED
from dieselfs.errors import EXIT_USAGE
from tests.support.dlcmd import Dlcmd


def test_the_order_is_that_of_the_library(dlcmd: Dlcmd, dataset: str) -> None:
    root = os.path.join(os.fsencode(dlcmd.folder), b"many")
    os.mkdir(root)
    for name in (b"%d" % number for number in range(50)):
        with open(os.path.join(root, name), "wb") as file:
            file.write(name)
    with open(os.path.join(root, b"\xff\nodd"), "wb"):
        pass
    dlcmd("put", "-rq", "many/", f"dl://{dataset}/")
    with dieselfs.connect(dataset, server=EMBEDDED, home=dlcmd.home) as data:
        orders = {epoch: list(map(os.fsencode, data.shuffle(7, epoch, 2))) for epoch in (0, 1)}
    assert orders[0] != orders[1]
    shuffle = ("shuffle", dataset, "--seed", "7", "--group", "2")
    for epoch, order in orders.items():
        exact = dlcmd(*shuffle, "--epoch", str(epoch), "-0").stdout
        assert exact == b"".join(name + b"\0" for name in order)
    text = dlcmd(*shuffle).lines
    assert "\\xff\\nodd" in text and len(text) == 51
    ran = dlcmd(*shuffle, "--json")
    assert [one["path"] for one in ran.objects if "path_bytes" not in one] == [
        name.decode() for name in orders[0] if b"\xff" not in name
    ]
    assert [one["position"] for one in ran.objects] == list(range(51))
    dlcmd(*shuffle, "--seed", "-1", exit_code=EXIT_USAGE)
    dlcmd(*shuffle, "--json", "-0", exit_code=EXIT_USAGE)
