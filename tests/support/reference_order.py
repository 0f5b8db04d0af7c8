"""A second implementation of the order, from `docs/reference/order.md` alone, with Python's integers and no NumPy."""

from collections.abc import Mapping, Sequence

MASK = (1 << 64) - 1


def mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def key(seed: int, epoch: int, kind: int, name: int) -> int:
    return mix(mix(mix(mix(seed) ^ epoch) ^ kind) ^ name)


def chunk_name(chunk_id: bytes) -> int:
    return mix(mix(int.from_bytes(chunk_id[:8], "big")) ^ int.from_bytes(chunk_id[8:], "big"))


def group_sizes(chunks: int, group: int | None) -> list[int]:
    """How many chunks each group has. `group`: None for those that grow."""
    if group is not None:
        sizes = [group] * (chunks // group) if group else [chunks]
        return [*sizes, chunks - sum(sizes)] if sum(sizes) < chunks else sizes
    sizes = []
    for size in (4, 8, 16):
        if chunks - sum(sizes) - size >= 16:
            sizes.append(size)
        else:
            break
    left = chunks - sum(sizes)
    groups = max((left + 12) // 25, 1)
    return [*sizes, *((number + 1) * left // groups - number * left // groups for number in range(groups))]


def order(
    chunk_ids: Sequence[bytes],
    first_chunks: Mapping[int, int | None],
    seed: int,
    epoch: int,
    group: int | None,
) -> list[int]:
    """Nodes in order. `first_chunks`: by node, the number of the file's first chunk; None for an empty file."""
    ids = list(chunk_ids) or [bytes(16)]
    chunks = sorted(
        range(len(ids)), key=lambda chunk: (key(seed, epoch, 1, chunk_name(ids[chunk])), ids[chunk])
    )
    numbers = [number for number, size in enumerate(group_sizes(len(ids), group)) for _ in range(size)]
    group_of = dict(zip(chunks, numbers, strict=True))

    def place(node: int) -> tuple[int, int]:
        chunk = first_chunks[node]
        return group_of[node % len(ids) if chunk is None else chunk], key(seed, epoch, 2, mix(node))

    return sorted(first_chunks, key=place)


def pinned(whole: Sequence[int], skips: Sequence[range]) -> list[int]:
    """The order after skips."""
    return [node for place, node in enumerate(whole) if not any(place in one for one in skips)]


def read_by(total: int, rank: int, world: int, batch: int, start: int, drop_last: bool) -> list[list[int]]:
    """The positions that a rank reads, step by step."""
    steps = []
    for step in range(-(-total // batch)):
        places = [place for place in range(total) if place // batch == step and place >= start]
        if (step + 1) * batch <= total or not drop_last:
            size = len(places)
            steps.append(places[rank * size // world : (rank + 1) * size // world])
    return [mine for step, mine in enumerate(steps) if (step + 1) * batch > start and start < total]


def local_step(homes: Sequence[int | None], rank_nodes: Sequence[int]) -> list[list[int]]:
    """What each rank reads of one step in a local assignment, as places in the step. `homes`: the node of each place;
    `rank_nodes`: the node of each rank.
    """
    size, world = len(homes), len(rank_nodes)
    counts = [(rank + 1) * size // world - rank * size // world for rank in range(world)]
    room = dict.fromkeys(rank_nodes, 0)
    for node, count in zip(rank_nodes, counts, strict=True):
        room[node] += count
    taken: dict[int, list[int]] = {node: [] for node in room}
    left = []
    for place, home in enumerate(homes):
        if home is not None and len(taken[home]) < room[home]:
            taken[home].append(place)
        else:
            left.append(place)
    for node, places in taken.items():
        while len(places) < room[node]:
            places.append(left.pop(0))
        places.sort()
    return [
        [taken[node].pop(0) for _ in range(count)] for node, count in zip(rank_nodes, counts, strict=True)
    ]


def mixed(counts: Sequence[int], seed: int, epoch: int) -> list[int]:
    """The source at each position of a mixed epoch."""
    places = [
        ((number << 32 | mix(key(seed, epoch, 3, source) ^ number) >> 32) // count, source, number)
        for source, count in enumerate(counts)
        for number in range(count)
    ]
    return [source for _, source, _ in sorted(places)]
