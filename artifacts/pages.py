"""The values of a Parquet column as they lie in its file, for columns of features.

Parquet knows no list of fixed size: it stores two numbers a value that say where lists begin and what is null, and
Arrow decodes them all (apache/arrow#34510; a repetition type VECTOR that ends this is proposed). Where a column is
plain, uncompressed and without gaps, its pages hold nothing but the values, one after the other, behind those numbers.
This reads just enough of the pages' headers (Thrift's compact protocol) to find them, and gives up on anything else: a
file that another program wrote is read in the usual way.

It stays until Arrow is nearly as fast. 300 MB of `video_features` into one array, in MB a second on one core and on
two, pyarrow 26.0.1, best of three, files in the page cache (`python -m tests.bench_features storage` measures the main
ones again):

    this file                                       1309   2466
    read_table, memory-mapped                        116    228
    read_table of lists that may not be null         158    229
    pyarrow.dataset                                  135    193
    iter_batches                                     162    216
    byte-stream split                                172    208
    a large_binary column beside                     904    923   twice the bytes on disk
    a list of fixed_size_binary beside               747    858   twice the bytes on disk
    Arrow IPC, memory-mapped                        2265   3097   no Parquet: DuckDB and Spark can't open it
"""

from typing import Any

UNCOMPRESSED, FLOAT16_BYTES = "UNCOMPRESSED", 2
DATA_PAGE, DATA_PAGE_V2 = 0, 3  # PageType
PLAIN, RLE = 0, 3  # Encoding
STRUCT, TRUE, FALSE, BYTE, I64, BINARY, LIST = 12, 1, 2, 3, 6, 8, 9  # types of the compact protocol

Fields = dict[int, Any]


class _Unexpected(Exception):  # noqa: N818 (no error: the usual reader takes over)
    """The file is not what this reads."""


class _Header:
    """Reads a Thrift struct from the bytes of a file."""

    def __init__(self, data: memoryview, at: int) -> None:
        self.data, self.at = data, at

    def number(self) -> int:
        """An unsigned number of variable length."""
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def struct(self) -> Fields:
        """Fields by their numbers."""
        fields: Fields = {}
        last = 0
        while byte := self.data[self.at]:
            self.at += 1
            step, kind = byte >> 4, byte & 0x0F
            last = last + step if step else self._signed()
            fields[last] = self._value(kind)
        self.at += 1
        return fields

    def _signed(self) -> int:
        value = self.number()
        return (value >> 1) ^ -(value & 1)

    def _value(self, kind: int) -> Any:
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if kind == STRUCT:
            return self.struct()
        if kind == BINARY:
            size = self.number()
            self.at += size
            return None
        if BYTE < kind <= I64:
            return self._signed()
        raise _Unexpected


def plain_values(data: memoryview, chunk: Any) -> list[memoryview] | None:
    """The bytes of a column chunk's halves, page after page, or None where they do not simply lie there.

    `chunk` is pyarrow's `ColumnChunkMetaData`, `data` the bytes of the whole file.
    """
    if chunk.compression != UNCOMPRESSED or chunk.has_dictionary_page:
        return None
    at, end = chunk.data_page_offset, chunk.data_page_offset + chunk.total_compressed_size
    pages, values = [], 0
    try:
        while at < end:
            header = _Header(data, at)
            fields = header.struct()
            if fields[3] < 0:
                return None
            at = header.at + fields[3]
            count, page = _page(fields, data[header.at : at])
            values += count
            pages.append(page)
    except (_Unexpected, IndexError, KeyError, TypeError):  # damaged, or of another kind
        return None
    return pages if values == chunk.num_values and at == end else None


def _page(fields: Fields, page: memoryview) -> tuple[int, memoryview]:
    """How many values a page has, and their bytes."""
    if fields[1] == DATA_PAGE:
        header = fields[5]
        if (header[2], header[3], header[4]) != (PLAIN, RLE, RLE):
            raise _Unexpected
        for _ in range(2):  # where lists begin, and what is null: each with its length before it
            page = page[4 + int.from_bytes(page[:4], "little") :]
    elif fields[1] == DATA_PAGE_V2:
        header = fields[8]
        if header[4] != PLAIN or header[2] or header.get(7, True) is not False:
            raise _Unexpected
        page = page[header[5] + header[6] :]
    else:
        raise _Unexpected
    if len(page) != header[1] * FLOAT16_BYTES:  # fewer values than places: something is null or empty
        raise _Unexpected
    return header[1], page
