import pytest
from openai import OpenAI

from tests.server.model_server import serve_models
from tests.server.tools.records import Records
from tests.server.toy_models import Parrot
from tests.server.toy_tool_model import Scripted


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server with the MCP server `records`, and what that has recorded."""
    records = Records(tmp_path_factory.mktemp("records") / "lines")
    with serve_models({"scripted": Scripted(), "parrot": Parrot()}) as server:
        server.state.mcp_servers = records.servers()
        server.records = records
        yield server


@pytest.fixture(scope="module")
def openai(served):
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(autouse=True)
def no_records(served):
    served.records.clear()
