"""A stand-in for OpenAI's and Gemini's servers that speaks their protocols over HTTP and fails on demand.

    with ProtocolServer() as server:
        server.change(latency=0.2)
        server.script({"when": {"every": 7}, "do": "status", "status": 429})
        client = openai.OpenAI(base_url=server.openai_url, api_key="sk-test")
        ...
        assert len(server.requests(status=200)) == 6

`faults` lists the faults.
"""

from tests.protocol_server.server import ProtocolServer as ProtocolServer
