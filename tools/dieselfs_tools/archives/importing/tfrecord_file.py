"""Records of a TFRecord file, as a stream; the features of an Example are files. No I/O of its own.

The framing is that of TensorFlow: length (8 bytes), masked CRC32C of it (4), content, masked CRC32C of the content (4).
"""

import re
import struct
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any, BinaryIO

import numpy as np

from dieselfs.errors import Damaged
from dieselfs_tools.archives.formats import required
from dieselfs_tools.archives.importing.inputs import Input
from dieselfs_tools.archives.importing.record import Record, npy, number, suffix_of

RECORD_BYTES_MAX = 1 << 30
HEAD = struct.Struct("<QI")

_TAIL = struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8
_NAME = re.compile(r"\.tfrecords?([.-]|$)")


def recognizes(source: Input) -> bool:
    """By the name of a file, or by the first length in it, if the package for its checksum is there."""
    if _NAME.search(source.name.lower()):
        return not source.is_folder
    return find_spec("google_crc32c") is not None and is_tfrecord(source.head)


def read(source: Input) -> Iterator[Record]:
    """Example 7 with the feature `image/encoded` has the file `00000007.image.encoded.jpg`. Bytes are files; several,
    and numbers, are numbered files and .npy files. A record that is no Example is one file `00000007`.

    Raises Damaged at a wrong checksum, and if the file is cut off.
    """
    parse = _example_parser()
    offset = 0
    for index, content in enumerate(frames(source.stream())):
        features, offset = parse(content), offset + HEAD.size
        if features is None:
            yield Record.of(number(index).encode(), content, source.mtime_ns, source.place(offset))
        for name, value in features or ():
            for suffix, part in _files(value):
                file = f"{number(index)}.{name.replace('/', '.')}{suffix}"
                # Any equal bytes of the record will do.
                at = content.find(part) if isinstance(value, list) else -1
                place = source.place(offset + at) if at >= 0 else None
                yield Record.of(file.encode("utf-8", "surrogateescape"), part, source.mtime_ns, place)
        offset += len(content) + _TAIL.size


def masked_crc(crc: int) -> int:
    """The checksum as it is stored: rotated, with a constant added."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFF_FFFF


def is_tfrecord(head: bytes) -> bool:
    """Whether a file begins with a length whose checksum is right."""
    if len(head) < HEAD.size:
        return False
    _, checksum = HEAD.unpack_from(head)
    return bool(masked_crc(required("google_crc32c").value(head[:8])) == checksum)


def frames(stream: BinaryIO) -> Iterator[bytes]:
    """The contents of all records. Raises Damaged."""
    crc32c: Callable[[bytes], int] = required("google_crc32c").value
    place = 0
    while head := stream.read(HEAD.size):
        if len(head) < HEAD.size:
            raise Damaged(f"cut off in the record at offset {place}")
        length, checksum = HEAD.unpack(head)
        if masked_crc(crc32c(head[:8])) != checksum:
            raise Damaged(f"the checksum of the length at offset {place} is wrong")
        if length > RECORD_BYTES_MAX:
            raise Damaged(f"the record at offset {place} has {length} bytes, limit {RECORD_BYTES_MAX}")
        content = stream.read(length)
        tail = stream.read(_TAIL.size)
        if len(content) < length or len(tail) < _TAIL.size:
            raise Damaged(f"cut off in the record at offset {place}")
        if masked_crc(crc32c(content)) != _TAIL.unpack(tail)[0]:
            raise Damaged(f"the checksum of the record at offset {place} is wrong")
        yield content
        place += HEAD.size + length + _TAIL.size


def _files(value: Any) -> Iterator[tuple[str, bytes]]:
    """Suffix and content of the files of one feature, which may have none."""
    if isinstance(value, list):
        for place, content in enumerate(value):
            yield (f".{place}" if len(value) > 1 else "") + suffix_of(content), content
    elif value is not None:
        yield ".npy", npy(value)


Features = list[tuple[str, Any]]


def _example_parser() -> Callable[[bytes], Features | None]:
    """A function from a record to its features in the order of their names: a list of bytes, an array, or None. For a
    record that is no Example, it returns None.
    """
    example, decode_error = _example_type(), required("google.protobuf.message").DecodeError

    def parse(content: bytes) -> Features | None:
        message = example()
        try:
            message.ParseFromString(content)
        except decode_error:
            return None
        if not message.features.feature or message.ByteSize() != len(content):
            return None
        return [(name, _value(message.features.feature[name])) for name in sorted(message.features.feature)]

    return parse


def _value(feature: Any) -> Any:
    kind = feature.WhichOneof("kind")
    if kind == "bytes_list":
        return list(feature.bytes_list.value)
    if kind == "float_list":
        return np.array(feature.float_list.value, np.float32)
    if kind == "int64_list":
        return np.array(feature.int64_list.value, np.int64)
    return None


def _example_type() -> Any:
    """The message `tensorflow.Example`, of tensorflow/core/example/example.proto and feature.proto."""
    descriptor_pb2 = required("google.protobuf.descriptor_pb2")
    pool = required("google.protobuf.descriptor_pool").DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tensorflow", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto
    lists = (
        ("BytesList", field.TYPE_BYTES),
        ("FloatList", field.TYPE_FLOAT),
        ("Int64List", field.TYPE_INT64),
    )
    for name, kind in lists:
        message = file.message_type.add(name=name)
        message.field.add(name="value", number=1, type=kind, label=field.LABEL_REPEATED)

    def add(message: Any, name: str, place: int, kind: str, **more: Any) -> None:
        label = more.pop("label", field.LABEL_OPTIONAL)
        type_name = f".tensorflow.{kind}"
        message.field.add(
            name=name, number=place, type=field.TYPE_MESSAGE, type_name=type_name, label=label, **more
        )

    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for place, name in enumerate(("bytes_list", "float_list", "int64_list")):
        add(feature, name, place + 1, lists[place][0], oneof_index=0)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    add(entry, "value", 2, "Feature")
    add(features, "feature", 1, "Features.FeatureEntry", label=field.LABEL_REPEATED)
    example = file.message_type.add(name="Example")
    add(example, "features", 1, "Features")
    pool.Add(file)
    factory = required("google.protobuf.message_factory")
    return factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))
