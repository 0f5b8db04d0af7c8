"""Encrypts the chunks of a dataset on their way to a server. No I/O."""

from collections.abc import Iterator

from dieselfs.chunk.builder import ChunkBuilder, SealedChunk
from dieselfs.encryption.cipher import DatasetCipher
from dieselfs.encryption.segments import SEGMENT_BYTES, extent_context, seal_extent, sealed_length
from dieselfs.errors import InvalidInput
from dieselfs.limits import CHUNK_PAYLOAD_BYTES_MAX
from dieselfs.names import printable, split_path
from dieselfs.records import Op


def encrypted(cipher: DatasetCipher, chunk: SealedChunk) -> Iterator[SealedChunk]:
    """The same entries encrypted: in one chunk, or in several if the encrypted paths need more room. Raises
    InvalidInput for what cannot be encrypted.
    """
    if chunk.source is not None:
        raise InvalidInput(
            "the dataset is encrypted, and the bytes of an attached source are not: import the source instead"
        )
    builder = ChunkBuilder(CHUNK_PAYLOAD_BYTES_MAX)
    payload = memoryview(chunk.payload)
    for path, op, mode, mtime_ns, size, place, offset, length, _, version in chunk.entries:
        if builder.is_full:
            yield builder.seal()
        sealed_path = cipher.names.seal_path(path)
        if op == Op.FILE:
            if place % SEGMENT_BYTES:
                raise InvalidInput(
                    f"{printable(path)}: an extent of an encrypted file begins at {place}, which is no multiple of "
                    f"{SEGMENT_BYTES} bytes; give another --chunk-size"
                )
            context = extent_context(path, size, place, length, mtime_ns)
            sealed = seal_extent(cipher.data_key, context, payload[offset : offset + length])
            whole, at = sealed_length(size), sealed_length(place)
            builder.add_file(sealed_path, sealed, mode, mtime_ns, whole, at, version)
        elif op == Op.DIRECTORY:
            builder.add_directory(sealed_path, mode, mtime_ns, version)
        elif op == Op.SYMLINK:
            plain = chunk.targets[offset : offset + length]
            target = cipher.names.seal_target(plain, split_path(sealed_path)[1])
            builder.add_symlink(sealed_path, target, mode, mtime_ns, version)
        else:
            builder.add_delete(sealed_path, version)
    yield builder.seal()
