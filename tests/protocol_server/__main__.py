"""`python -m tests.protocol_server --port 0 --latency 0.2 --log FILE --script FILE_OR_JSON`."""

import asyncio

from tests.protocol_server.server import listen
from tests.protocol_server.settings import from_command_line

if __name__ == "__main__":
    asyncio.run(listen(from_command_line()))
