import pytest
from magnetar.core.hashing import bundle_hash, java_string_hash, murmur3_32, topics_hash

# Printed by Pulsar 4.0.8: Murmur3_32Hash, JavaStringHash, java.util.zip.CRC32 of the same text.
VECTORS = [
    ("", 0, 0, 0x0),
    ("a", 1009084850, 97, 0xE8B7BE43),
    ("key", 1654417988, 106079, 0x8A90ABA9),
    ("hello world", 1586663183, 1794106052, 0x0D4A1185),
    ("persistent://public/default/test", 2066498240, 467213059, 0xAA2E30F5),
    ("ключ", 442048578, 33309882, 0x0CAF961A),
    ("😀x", 1914495294, 54959989, 0xFD68DEBF),
    ("consumer-1\0" + "0\0" + "17", 1829248822, 291173404, 0x45726777),
]


@pytest.mark.parametrize(("text", "murmur", "java", "crc"), VECTORS)
def test_hashes_are_pulsars(text: str, murmur: int, java: int, crc: int) -> None:
    assert murmur3_32(text.encode()) == murmur
    assert java_string_hash(text) == java
    assert bundle_hash(text) == crc


def test_topics_hash_is_pulsars() -> None:
    assert topics_hash(["persistent://public/default/b", "persistent://public/default/a"]) == "c7559e98"
    assert topics_hash([]) == "00000000"
    assert topics_hash(["persistent://public/default/é", "persistent://public/default/z"]) == "9a76d972"
