import pytest
from openai import OpenAI


@pytest.fixture(scope="module")
def openai(server):
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client
