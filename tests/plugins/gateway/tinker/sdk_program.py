"""A program of Tinker's SDK, which `test_sdk` runs in an environment with nothing of Quintain:
``python sdk_program.py URL``. Its assertions are the test.
"""
# mypy: ignore-errors

import os
import sys
import urllib.request

import tinker
from tinker import types

service = tinker.ServiceClient(base_url=sys.argv[1], api_key="tml-test")
client = service.create_lora_training_client(base_model="tiny", rank=8, seed=1).result()
assert client.get_info().lora_rank == 8
ids = list(range(40, 70))
text = types.ModelInput.from_ints(ids)
datum = types.Datum(
    model_input=types.ModelInput.from_ints(ids[:-1]),
    loss_fn_inputs={"target_tokens": ids[1:], "weights": [1.0] * (len(ids) - 1)},
)
losses = []
for _ in range(3):
    batch = client.forward_backward([datum] * 1030, "cross_entropy")  # two parts of one batch
    step = client.optim_step(types.AdamParams(learning_rate=1e-2))
    losses.append(batch.result().metrics["loss:sum"])
    assert len(batch.result().loss_fn_outputs) == 1030
    assert step.result().metrics["grad_norm:mean"] > 0
assert losses[2] < losses[0]

sampler = client.save_weights_and_get_sampling_client().result()
params = types.SamplingParams(max_tokens=6, temperature=1.0)
sample = sampler.sample(
    text, 2, params, include_prompt_logprobs=True, topk_prompt_logprobs=2, topk_sample_logprobs=2
).result()
assert len({sequence.sequence_id for sequence in sample.sequences}) == 2
assert all(len(s.tokens) == len(s.logprobs) == len(s.topk_logprobs) for s in sample.sequences)
forward = client.forward([datum], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].data
scored = sampler.compute_logprobs(text).result()
assert scored[0] is None
assert max(abs(a - b) for a, b in zip(scored[1:], forward, strict=True)) < 1e-4
first = sample.sequences[0]
policy = types.Datum(
    model_input=types.ModelInput.from_ints([*ids, *first.tokens[:-1]]),
    loss_fn_inputs={
        "target_tokens": [*ids[1:], *first.tokens],
        "logprobs": [0.0] * (len(ids) - 1) + first.logprobs,
        "advantages": [0.0] * (len(ids) - 1) + [1.0] * len(first.tokens),
    },
)
for loss, config in (
    ("importance_sampling", None),
    ("ppo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}),
    ("cispo", None),
    ("dro", {"beta": 0.05}),
):
    assert "loss:sum" in client.forward_backward([policy], loss, config).result().metrics
on_policy = client.forward([policy], "importance_sampling").result().metrics["loss:sum"]
assert abs(on_policy + len(first.tokens)) < 1e-3  # every ratio is 1

state = client.save_state("one", user_metadata={"of": "test"}).result().path
named = client.save_weights_for_sampler("two").result().path
assert service.create_sampling_client(model_path=named).result().get_base_model() == "tiny"
other = service.create_training_client_from_state_with_optimizer(state).result()
for one in (client, other):
    one.optim_step(types.AdamParams(learning_rate=1e-2)).result()
rest = tinker.RestClient(base_url=sys.argv[1], api_key="tml-test")
assert rest.get_server_capabilities().result().supported_models[0].model_name == "tiny"
assert rest.get_weights_info_by_tinker_path(state).result().lora_rank == 8
assert rest.get_training_run(client.model_id).result().is_lora
assert len(rest.list_checkpoints(client.model_id).result().checkpoints) == 2
assert rest.copy_weights(state, "project").result().endswith("/weights/one")
rest.publish_checkpoint_from_tinker_path(state).result()
rest.set_checkpoint_ttl_from_tinker_path(state, 3600).result()
export = client.save_weights_external("out").result().path
urls = rest.get_external_weights_urls(export).result().urls
assert all(urllib.request.urlopen(url).read() for url in urls.values())
rest.delete_checkpoint_from_tinker_path(export).result()
assert len(rest.list_user_checkpoints().result().checkpoints) == 3
try:
    client.forward_backward([policy], "stable_reinforce").result()
except tinker.RequestFailedError as refusal:
    assert "not published" in str(refusal)
else:
    raise AssertionError("a loss without a formula was computed")
client.forward([datum], "cross_entropy").result()  # which the refusal did not stop
service.close("success").result()
print("all calls answered", flush=True)
# A thread of the SDK that waits in code of Rust while the interpreter ends aborts the process (one
# program in 50 with requests under way), whatever was answered before.
os._exit(0)
