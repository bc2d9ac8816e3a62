"""The benchmarks by name: the question each answers, its target in plain words, and why a missed target is missed.

A change of a workload or a baseline increments the `series` of its benchmark and names the decision note.
"""

from __future__ import annotations

from bench.claims import Bench, Option

BENCHES: dict[str, Bench] = {
    "first-minute": Bench(
        "How long does a first visit take?",
        "bench.first_minute:first_minute",
        "Seconds from an empty environment to the first spoken answer, by phase, and the word error rate of "
        "that answer.",
        "First spoken answer within 60 s, understood by another recognizer.",
        "Installing torch and the other packages takes up to half of the time; the first load captures the networks, "
        "which later starts have in a cache.",
    ),
    "first-hour": Bench(
        "Does the first hour of a new user go well?",
        "bench.first_hour:first_hour",
        "Second start of a server (wall, CPU, memory), right answers to twenty simple questions in chat and realtime "
        "without parameters, structured output, error codes. With `--model assistant` also a spoken answer.",
        "Every step meets its target.",
        "The start loads weights, torch and the server in three processes that share the cores.",
        is_speed=False,
        options=(Option("model", str, "Model to serve: smollm2 (default), or assistant, which takes longer."),),
    ),
    "loop-step": Bench(
        "What does a loop step cost in Python?",
        "bench.step_overhead:loop_step",
        "µs per decode step of a speech request in a batch of 128, without the op.",
        "At most 3 µs.",
    ),
    "request-start": Bench(
        "What does starting a request cost?",
        "bench.step_overhead:request_start",
        "µs to start a request on a walk of ten nodes.",
        "At most 50 µs.",
    ),
    "engine": Bench(
        "How close is the engine to a bare decode loop?",
        "bench.engine:engine",
        "Throughput relative to a bare loop at 1, 8, 16 and 32 requests; relative to `generate`; prefill.",
        "At least 0.95 of the bare loop, prefill 0.9, 32 requests 8 times `generate`; at most 1 ms beside the forward "
        "at 128 requests.",
        "Beside the forward, Python code looks at the pages, the sampling and the result of each of the 128 rows.",
    ),
    "engine-peers": Bench(
        "How does the engine compare with other engines?",
        "bench.engine_comparison:compare_engines",
        "Tokens per second at 1, 8, 16 and 32 requests beside vLLM, llama.cpp, OpenVINO GenAI and transformers in "
        "bf16, and beside llama.cpp with 8-bit weights, in turns.",
        "At least as fast as the fastest.",
        series=2,
        decision="0077-engine-peers-in-one-round.md",
    ),
    "peers": Bench(
        "How does the server compare with other model servers?",
        "bench.peers.headline:peers",
        "Requests per second of a composite model behind seven other servers with ragged lengths, at 1, 8, 16 and 64 "
        "clients; SmolLM2 behind vLLM's server.",
        "At least as fast as the fastest at each number of clients.",
        series=2,
        decision="0074-peers-in-one-round.md",
    ),
    "device-budget": Bench(
        "How often does a decode step wait for its device?",
        "bench.device_budget:device_budget",
        "Waits, copies and kernels of a decode step, counted on a pretend GPU: a torch device in host memory.",
        "At most 2 waits and 3 copies to the device, for any number of greedy or sampled rows.",
        is_speed=False,
    ),
    "run-ahead": Bench(
        "Does a device wait for the host between decode steps?",
        "bench.run_ahead:run_ahead",
        "Share of the time in which a pretend GPU with steps of 8 ms works while 64 requests decode, with and without "
        "run-ahead.",
        "At least 0.97 of the time.",
        "Two cores are not enough for the two threads of the worker, the conductor and the front end at this rate of "
        "tokens.",
    ),
    "int8-step": Bench(
        "How much faster is int8 than bf16?",
        "bench.int8:step",
        "Duration of a decode step by batch size.",
        "At least 1.3x at a batch of 32.",
    ),
    "adapters": Bench(
        "What do LoRA adapters cost?",
        "bench.adapters:step",
        "Duration of a decode step of 8 requests with 8 adapters, relative to the base model.",
        "At most 1.10x with rank 8 in the attention.",
    ),
    "runtime": Bench(
        "What do the conductor and worker processes cost?",
        "bench.runtime:runtime",
        "Throughput relative to the engine alone; µs per hop between workers, per token to the front end, per request.",
        "Throughput at least 0.95 of the engine; hop 150 µs, hop with 1 MB 500 µs, token 200 µs, request 1 ms.",
        "Each message crosses two Python event loops and a thread, which takes many times a bare socket round trip.",
    ),
    "cost": Bench(
        "What does the control path cost in CPU time?",
        "bench.cost.ledger:cost",
        "CPU time of front end, conductor and worker per streamed token, one-token chat, hop, refusal and waiting "
        "stream.",
        "Per token: front end 40 µs at 64 toy streams and 60 µs at 16 of SmolLM2, conductor 2 µs, worker 30 µs; per "
        "one-token chat 900 µs in all.",
        "Every request and token passes Python code of three processes, which wake each other through sockets.",
        is_speed=False,
    ),
    "http": Bench(
        "What does HTTP cost?",
        "bench.http.overhead:http_overhead",
        "SmolLM2 over HTTP at 16 streams relative to the engine alone; ms from a worker's emission to the client.",
        "Throughput at least 0.9 of the engine; median delivery at most 2 ms.",
        "Delivery waits because front end and worker share two cores with the engine's threads.",
    ),
    "idle-streams": Bench(
        "How many idle streams does one front end hold?",
        "bench.http.idle_streams:idle_streams",
        "kB per stream at 20,000 streams, and the delay of active streams beside them.",
        "Active streams at most 30 ms late; at most 30 kB per idle stream.",
        series=2,
        decision="0057-twenty-thousand-idle-streams.md",
    ),
    "slow-readers": Bench(
        "Do slow clients delay the others?",
        "bench.http.slow_readers:slow_readers",
        "ms between the tokens of 50 active streams beyond the duration of a step, without and beside 5,000 clients "
        "that read 100 bytes per second.",
        "At most 5 ms more (p99).",
    ),
    "overload": Bench(
        "What happens at two, three and five times the capacity?",
        "bench.http.overload:overload",
        "Goodput of a toy model (ops sleep 10 ms) relative to capacity; ms until a client has read its rejection.",
        "Goodput at least 0.95 of capacity; rejections within 20 ms (p99).",
        "Rejections are late because under full load the event loop waits for a core.",
        series=2,
        decision="0033-restored-bars.md",
    ),
    "deadlines": Bench(
        "Do audio streams stutter under load?",
        "bench.deadlines.speech:deadlines",
        "Audio chunks on time: real runs of 9 s at 90 % of capacity with our rule and VoxServe's, at 60 % with first "
        "come first served (FCFS); simulated runs of 300 s at 95 % and 100 % with all three.",
        "Real: 99 % on time with our rule, less with FCFS. Simulated: ours above FCFS and VoxServe's rule at both "
        "loads.",
        "Close to capacity a burst makes some chunks late with every rule, and which rule has fewer of them depends on "
        "the measured costs.",
        series=2,
        decision="0033-restored-bars.md",
    ),
    "barge-in": Bench(
        "Does a model know what it said when it is interrupted?",
        "bench.speech.barge_in:barge_in",
        "Conversations with the assistant over the Realtime WebSocket, cut at random samples: share of cuts after "
        "which the history is the text of the words that were played; tokens of the history read again; first sound of "
        "the next turn relative to the same turn of a conversation that was not cut.",
        "99 % of the cuts exact, no token read again, first sound at most 1.3x.",
        options=(
            Option("conversations", int, "Conversations to cut (default 12)."),
            Option("seed", int, "Random seed of questions and cuts (default 1)."),
        ),
    ),
    "load-curve": Bench(
        "At which load do streams begin to stutter?",
        "bench.deadlines.speech:load_curve",
        "Share of chunks on time by load and scheduling rule, the load that ours, VoxServe's rule and FCFS sustain, "
        "time to first audio.",
        "At least 1.5x the load that FCFS sustains at 99 % on time; if FCFS sustains no measured load, the ratio to "
        "the lowest one is a minimum.",
        series=2,
        decision="0033-restored-bars.md",
    ),
    "mixed": Bench(
        "Are deadlines met when speech, chat, images and a robot share one engine?",
        "bench.deadlines.mixed:mixed",
        "Deadline misses by kind, and throughput relative to a scheduler without deadlines.",
        "99 % of chunks on time, at most 1 % late robot replies, 0.9 of the throughput.",
    ),
    "capacity-sim": Bench(
        "Does the capacity simulation predict real runs?",
        "bench.deadlines.capacity_sim:capacity_sim",
        "Three scheduling rules at two loads, real and simulated, with the prediction error.",
        "The same ranking of rules, error at most 15 %.",
    ),
    "simulated": Bench(
        "Are the predictions of the capacity planner true?",
        "bench.simulated.headline:simulated",
        "p50 and p95 of TTFT, requests on time and throughput of the same arrivals on a real deployment and predicted "
        "from a profile, by load; decode steps estimated by roofline against published ones. With `--cases all` three "
        "models, three loads, two placements, and a deployment of what the planner recommends.",
        "All four figures within 15 % in eight of nine cases; the recommended placement holds its SLO, the next "
        "cheaper one does not.",
        "The workers share two cores with the front end and the clients, so the cost of a call changes during a run.",
        options=(Option("cases", str, "short (default): one model, one placement; all: every case."),),
    ),
    "slo-admission": Bench(
        "Are SLOs of admitted requests met under overload?",
        "bench.deadlines.slo_admission:slo_admission",
        "Goodput at two, three and five times the capacity, latency of all rejections, accuracy of TTFT predictions.",
        "Goodput at least 0.95 of that at 1x, rejections within 20 ms (p99), 90 % of predictions within 25 %.",
        "A prediction knows neither the length of the first sentence, nor the rest of the running batch, nor the "
        "requests that arrive later and go first.",
        series=2,
        decision="0033-restored-bars.md",
    ),
    "cluster": Bench(
        "What do clients notice when a host is lost?",
        "bench.cluster.headline:cluster",
        "32 streams of a toy model (ops sleep 4 ms) on three network namespaces of one machine, one partitioned, one "
        "killed: longest pause of a client, time until the partitioned host stops.",
        "All streams byte-equal, longest pause 3 s (p99), fenced within 2 s.",
    ),
    "calls": Bench(
        "Do live calls outlive their server and its host?",
        "bench.calls.headline:calls",
        "16 realtime sessions with the voice of Hibari over three servers on three network namespaces of one machine, "
        "with a worker, a conductor, a front end, a launcher and a whole host killed in turn, one each 5 s: seconds of "
        "playback in which sound was late, responses that differ, doubled events, ended calls.",
        "With 1 s of playback buffer no underrun in 99 % of seconds, each sound byte-equal, each call ends by itself.",
        "Copies of sessions are lost when losses follow one another quickly; where is not known. The servers, the "
        "callers and the processes that start again also share the cores of one machine.",
        options=(
            Option("seconds", float, "Duration of the calls in seconds (default 180)."),
            Option("frontends", int, "Number of front ends of each server (default 2)."),
        ),
    ),
    "multi-host": Bench(
        "What do several hosts cost?",
        "bench.cluster.overhead:overhead",
        "Tokens per second of three workers on three network namespaces of one machine and on one host, with KV cache "
        "transfers between them.",
        "At least 0.9 of one host.",
    ),
    "transfer": Bench(
        "What does it cost to move a value?",
        "bench.transfer:measure_transfer",
        "ms and MB/s within a process, through shared memory, and by Mooncake or TCP between two loopback addresses of "
        "one machine; 16 KB, 1 MB, 8 MB and the KV cache of 2,000 tokens.",
        "Every size at 0.9 of the speed of a bare Mooncake read.",
        "Reading and checking a small value in Python takes longer than moving its bytes; only large ones are met. "
        "Plain TCP is as fast as Mooncake or faster on loopback.",
        series=2,
        decision="0033-restored-bars.md",
    ),
    "speculation": Bench(
        "Are answers that repeat their prompt faster with drafts?",
        "bench.speculation:speculation",
        "Tokens per second of SmolLM2 with its published weights while 1 and 16 requests copy lines of their prompt, "
        "with speculative decoding by prompt lookup and without, in turns; share of equal answers.",
        "At least 1.3 times as fast with one request, and not slower with 16.",
        "In a large batch nearly every step has a forward with or without drafts, so that both are about as fast.",
    ),
    "kv-overlap": Bench(
        "Does a client wait for the transfer of a KV cache?",
        "bench.kv_overlap:kv_overlap",
        "ms from the end of a prompt of 2,000 tokens to the next output, which another worker computes: with parts of "
        "the KV cache sent while the prompt is read, with the whole cache sent after it, and without a transfer.",
        "At least 0.7 of the transfer happens while the prompt is read.",
        "The pages of the last chunk of the prompt can only be sent after it.",
        series=2,
        decision="0101-kv-overlap-in-two-rounds.md",
    ),
    "speech-omni": Bench(
        "Are speech families faster than their reference implementations?",
        "bench.speech.headline:speech_omni",
        "Short form. Orpheus with 16 streams, Qwen3-Omni with 8 requests, against transformers: speed-up, real-time "
        "factor and time to first audio against one request alone and against its batch.",
        "Speed-up over the reference relative to its target; 1 is the target.",
        "Eight requests share the thread that the baseline request has to itself, so latency gains less than "
        "throughput does.",
        series=2,
        decision="0034-fair-baselines.md",
    ),
    "orpheus": Bench(
        "Orpheus alone",
        "bench.speech.headline:orpheus_claim",
        "16 streams against transformers and snac, one by one (all sixteen timed) and as a batch; a wider network.",
        "1 is the target.",
    ),
    "qwen3-omni": Bench(
        "Qwen3-Omni alone",
        "bench.speech.headline:omni_claim",
        "8 requests against transformers: one request alone, a measured queue of eight, a batch of eight; a wider "
        "network.",
        "1 is the target.",
        "Eight requests share the thread that the baseline request has to itself, so latency gains less than "
        "throughput does.",
    ),
    "longform": Bench(
        "How fast are long recordings transcribed?",
        "bench.speech.longform:longform",
        "Ten minutes of speech against one pass of transformers, and the share of words that differ.",
        "At least 3x as fast, with the same words.",
    ),
    "longform-chunks": Bench(
        "Which chunk size suits long recordings?",
        "bench.speech.longform_chunks:longform_chunks",
        "CPU seconds, time until the transcript, words that differ from one pass of transformers, and KV pages, by "
        "chunk size; the same with the encoder positions freed that the transcript has left behind. Ten minutes of "
        "recorded speech of a Debian package (scripts/fetch-speech).",
        "At least 4x as fast as one pass, with the same words.",
        "The encoder computes nearly the same for all sizes and takes most of the time; recordings of short "
        "announcements have words that depend on where a window begins.",
        options=(Option("minutes", float, "Minutes of recorded speech (default 10)."),),
    ),
    "lite-asr": Bench(
        "What does a smaller encoder for speech cost in word errors?",
        "bench.speech.lite_asr:lite_asr",
        "Weights, time of a window and word errors of Whisper tiny.en, compressed as by `mstar compress` at two "
        "shares of variance, on recorded speech (scripts/fetch-speech) and on speech of Hibari that did not calibrate.",
        "1.4x as fast or 40 % smaller, with at most 1 % more word errors.",
        "The smallest published model has little redundancy: its layers keep most of their dimensions.",
        options=(Option("minutes", float, "Minutes of recorded speech, half of which calibrates (default 2)."),),
    ),
    "image-robot-world": Bench(
        "Are image, robot and world models faster than the published loops?",
        "bench.multimodal.headline:image_robot_world",
        "pi0.5, V-JEPA 2-AC and BAGEL: speed-up over our reimplementation of the published loop, in wall time.",
        "Speed-up relative to its target; 1 is the target.",
        "Above the width limit of the fused kernels, V-JEPA 2-AC gains only the frames that it does not compute again; "
        "pi0.5 gains only the padding and the masks that it leaves out.",
        series=2,
        decision="0034-fair-baselines.md",
    ),
    "bagel": Bench(
        "BAGEL alone",
        "bench.multimodal.headline:bagel_claim",
        "The same with more repeats, and a wider network.",
        "1 is the target.",
        series=2,
        decision="0034-fair-baselines.md",
    ),
    "pi05": Bench(
        "pi0.5 alone",
        "bench.multimodal.headline:pi05_claim",
        "The same for pi0.5: with an absent camera and padded tokens, and with nothing padded.",
        "1 is the target.",
        "In the proportions of the published model, padding is less of the work than the target assumes.",
        series=2,
        decision="0034-fair-baselines.md",
    ),
    "vjepa2-ac": Bench(
        "V-JEPA 2-AC alone",
        "bench.multimodal.headline:world_claim",
        "The same for V-JEPA 2-AC, by horizon, dtype and width.",
        "1 is the target.",
        "Above the width limit of the fused kernels, which the published networks exceed, the gain is only the frames "
        "that are not computed again.",
        series=2,
        decision="0034-fair-baselines.md",
    ),
    "hopper": Bench(
        "Does a robot get its actions in time?",
        "bench.multimodal.headline:hopper_claim",
        "Replies to a simulated robot at 50 Hz over WebSocket: late replies, distance hopped.",
        "At most 4 of 400 replies later than 20 ms.",
    ),
    "smolvlm": Bench(
        "How fast are several questions about one image?",
        "bench.multimodal.headline:smolvlm_claim",
        "Eight questions against the reference one by one and in its own batch.",
        "A third of the reference's time; 1 is the target.",
    ),
    "diffusion": Bench(
        "What does joining a running diffusion batch cost?",
        "bench.multimodal.headline:diffusion_claim",
        "Throughput of staggered requests relative to a bare loop that they join, and to one with all of them from the "
        "start; speed-up over diffusers.",
        "At least 0.95 of both bare loops; 1 is the target.",
        "Requests that arrive one after another take more and smaller forward passes than one batch of all, and the "
        "runtime adds its own work between steps.",
        series=2,
        decision="0034-fair-baselines.md",
    ),
    "scaling": Bench(
        "Do replicas follow the load?",
        "bench.scaling:scaling",
        "Workers and late chunks over time while four times as many streams of a toy model (ops sleep 20 ms) arrive "
        "for 16 s.",
        "No late chunk 10 s after the peak; no stream lost at scale-down.",
    ),
    "studio": Bench(
        "What does the studio cost?",
        "bench.studio:studio",
        "kB of all files and of a visit, first paint, frames per second with 200 live requests, throughput and CPU "
        "left by a viewer.",
        "80 kB each, 1 s, 30 frames/s, 0.98 of the throughput and of the CPU; 1 is the target.",
        "The files of all pages together are larger than the limit; a visit loads less than half of them.",
        series=2,
        decision="0033-restored-bars.md",
    ),
    "rag": Bench(
        "Is retrieval hidden behind the language model?",
        "bench.rag:rag",
        "Seconds of an answer with two searches and a draft between them, with and without lookahead, with a quarter "
        "of the index in memory; ms of the second search.",
        "1.5 times as fast with lookahead, with equal answers.",
        "On a CPU nearly all of the time is that of the language model, which lookahead does not change; reading lists "
        "from a local disk takes little of it.",
    ),
    "scale": Bench(
        "Does a stream cost more in a large deployment?",
        "bench.scale.headline:scale",
        "CPU time of the cores of front ends, conductors and workers in 60 s of virtual time: per stream at each power "
        "of ten, per chunk, turn and request of each core; events per second; memory of a stream; the same while 1 % "
        "of the workers die.",
        "At most 1.3 times as much CPU time per stream as with 1,000 streams.",
        "In one process, the data of many simulated workers do not fit into the caches that each real worker has to "
        "itself.",
        options=(
            Option("streams", int, "Streams of the largest deployment (default 10000)."),
            Option("workers", int, "Its workers (default 10)."),
            Option("shards", int, "Its conductors (default 2)."),
            Option("seconds", float, "Measured seconds of virtual time (default 60)."),
        ),
    ),
    "mutants": Bench(
        "Do the tests notice bugs?",
        "bench.mutants:mutation_score",
        "Planted bugs that the tests catch. Five runs plant all of them, a fifth each.",
        "At least 90 %, and 80 % in each package of the runtime.",
        "Two of the nine bugs in `launch` were not noticed: one made a test hang, one needs output in two chunks.",
        is_speed=False,
    ),
    "sim": Bench(
        "Do the invariants hold under faults?",
        "bench.simulator:fault_simulation",
        "Simulated scenarios, and those that violated an invariant. Five runs simulate all of them, a fifth each.",
        "No violation; at least 90 % of planted bugs found.",
        is_speed=False,
    ),
    "game-day": Bench(
        "Are the promises kept on a bad day?",
        "bench.game_day.headline:game_day",
        "Promises of the documentation that are kept while a real server has mixed load and injected faults: requests, "
        "faults, and what broke a promise. The last report is on [its page](game-day.md).",
        "All promises that could be checked.",
        is_speed=False,
        options=(
            Option("minutes", float, "Minutes of load (default 30)."),
            Option("seed", int, "Seed of the fault schedule (default: a random one, which is printed)."),
        ),
    ),
    "evidence": Bench(
        "Are the claims on this page backed by enough runs?",
        "bench.evidence:evidence",
        "Runs that count for each claim, their commit, how many met the target, and the verdict.",
        "Every other claim has five or more runs of one clean commit.",
        "Five runs of every benchmark take many hours on a quiet machine; those without them are listed.",
        is_speed=False,
    ),
}
