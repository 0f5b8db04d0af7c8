import socket

from lab.ports import BUS, HOST, free_port, free_ports


def test_no_port_is_given_twice_nor_one_that_a_node_of_a_cluster_takes_above() -> None:
    ports = free_ports(200)
    taken = [*ports, *(port + BUS for port in ports), free_port()]
    assert len(set(taken)) == len(taken)


def test_a_port_that_somebody_has_is_not_given() -> None:
    with socket.create_server((HOST, free_port())) as listening:
        assert listening.getsockname()[1] not in free_ports(100)
