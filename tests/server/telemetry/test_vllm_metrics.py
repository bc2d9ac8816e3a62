"""vLLM metric names: the same values as our metrics, and no metric without an equivalent."""

from prometheus_client.parser import text_string_to_metric_families

from tests.server.toy_models import BOOM
from tests.server.toy_server import chat_body, run_toy_server


def samples(client):
    families = text_string_to_metric_families(client.get("/metrics").text)
    return [one for family in families for one in family.samples]


def test_vllm_metric_names_are_exported_when_enabled():
    with run_toy_server() as server, server.client() as client:
        client.post("/v1/chat/completions", json=chat_body("abc"))
        assert not [one for one in samples(client) if one.name.startswith("vllm:")]
        server.state.metrics.register_compat_names("vllm")
        client.post("/v1/chat/completions", json=chat_body("abcdef", max_tokens=4))
        client.post("/v1/chat/completions", json=chat_body(f"a{BOOM}"))
        server.state.metrics.processes.update("w0", {"parrot.lm.pages": 8, "parrot.lm.pages_used": 2})
        scraped = samples(client)
        theirs = {(one.name, *one.labels.values()): one.value for one in scraped if "le" not in one.labels}
        ours = {(one.name, *one.labels.values()): one.value for one in scraped if "le" in one.labels}
    model = {one.labels.get("model_name") for one in scraped if one.name.startswith("vllm:")}
    assert model == {"parrot", None}
    assert theirs["vllm:request_success_total", "stop", "parrot"] == 1
    assert theirs["vllm:request_success_total", "length", "parrot"] == 1
    assert not [key for key in theirs if key[0] == "vllm:request_success_total" and "model_error" in key]
    assert theirs["vllm:prompt_tokens_total", "parrot"] == 9
    assert theirs["vllm:generation_tokens_total", "parrot"] == 3 + 4 + 1
    assert theirs["vllm:time_to_first_token_seconds_count", "parrot"] == 3
    assert theirs["vllm:inter_token_latency_seconds_count", "parrot"] == 2 + 3
    assert theirs["vllm:e2e_request_latency_seconds_count", "parrot"] == 2
    assert theirs["vllm:num_requests_running", "parrot"] == 0
    assert theirs["vllm:num_requests_waiting",] == 0
    assert theirs["vllm:kv_cache_usage_perc", "parrot"] == 0.25
    assert ours["vllm:e2e_request_latency_seconds_bucket", "+Inf", "parrot"] == 2


def test_a_rejection_for_overload_is_counted():
    from mstar.config import RuntimeConfig

    with (
        run_toy_server(options=RuntimeConfig(max_running_requests=1, max_queued_requests=0)) as server,
        server.client() as client,
    ):
        server.state.metrics.register_compat_names("vllm")
        with client.stream("POST", "/v1/chat/completions", json=chat_body("slow" + "x" * 100, stream=True)) as answer:
            lines = answer.iter_lines()
            next(lines)
            assert client.post("/v1/chat/completions", json=chat_body("x")).status_code == 429
        scraped = {one.name: one.value for one in samples(client)}
    assert scraped["vllm:admission_rejections_total"] == 1
