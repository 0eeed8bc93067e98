"""`smcprog distill` on tiny random models: the draft, its training, its folder, its report."""

import json
import math
import os

import pytest
import torch

from smcprog import Engine, ModelError, gen, prompt, smc_program
from smcprog.cli import main
from smcprog.distillation import DistillReport, distill, measures, recipe, texts, training
from smcprog.distillation.drafts import narrow, pruned
from tests.gpu import tiny

QUICK = {"length": 12, "learning_rate": 3e-3, "progress": False, "divergence": "kl"}
FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gpt2")


def target_of(family="llama", layers=3):
    kinds = {"layer_types": None} if family == "qwen2" else {}
    return tiny.causal_lm(family, num_hidden_layers=layers, initializer_range=0.1, **kinds)


@pytest.fixture(scope="module")
def target():
    return target_of()


@pytest.fixture(scope="module")
def target_folder(target, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "target"
    target.save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def made(target_folder, tmp_path_factory):
    """A finished folder and its report."""
    out = tmp_path_factory.mktemp("drafts") / "draft"
    return out, distill(target_folder, out, layers=(0, 2), steps=30, **QUICK)


def weights(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def some_texts(target, rows=3, length=6, prompts=((0,), (5, 6, 7))):
    return texts.sample(target, prompts, rows, length, seed=1)


# The draft before training


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pruned_draft_has_the_targets_layers(family):
    target = target_of(family)
    draft = pruned(target, (0, 2))
    name = "transformer.h" if family == "gpt2" else "model.layers"
    theirs, ours = target.get_submodule(name), draft.get_submodule(name)
    assert len(ours) == draft.config.num_hidden_layers == 2
    for layer, place in ((0, 0), (2, 1)):
        for key, tensor in theirs[layer].state_dict().items():
            assert torch.equal(tensor, ours[place].state_dict()[key])
    assert torch.equal(target.get_output_embeddings().weight, draft.get_output_embeddings().weight)
    everything = pruned(target, (0, 1, 2))
    ids = [3, 1, 4, 1, 5]
    assert torch.equal(tiny.dense_logits(everything, ids), tiny.dense_logits(target, ids))


def test_a_layer_keeps_its_kind_of_attention():
    draft = pruned(tiny.causal_lm("qwen2"), (1,))
    assert draft.config.layer_types == ["full_attention"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_narrow_draft_is_smaller_in_every_layer(family):
    target = target_of(family)
    draft = narrow(target, 16, 2, 2, seed=0)
    assert (draft.config.hidden_size, draft.config.num_hidden_layers) == (16, 2)
    assert draft.config.num_attention_heads == 2
    assert draft.num_parameters() < target.num_parameters() / 2
    assert tiny.dense_logits(draft, [1, 2, 3]).shape == (3, 290)


def test_a_narrow_draft_begins_with_the_principal_directions_of_the_embedding():
    target = target_of()
    with torch.no_grad():
        # Rows of rank 16: the projection loses no inner product.
        weight = target.get_input_embeddings().weight
        weight.copy_(weight[:, :16] @ torch.randn(16, 32))
    draft = narrow(target, 16, 1, None, seed=0)
    rows, projected = weight, draft.get_input_embeddings().weight
    assert torch.allclose(rows @ rows.T, projected @ projected.T, atol=1e-3)


# Texts


def test_texts_carry_the_states_that_their_tokens_were_drawn_from(target):
    drawn = some_texts(target)
    assert drawn.ids.shape == (3, 9) and drawn.drawn == 6
    recomputed = texts.final_states(target, drawn)
    real = drawn.mask[:, -7:-1, None]
    assert torch.allclose(recomputed * real, drawn.states * real, atol=1e-4)
    row = drawn.ids[1][drawn.mask[1]].tolist()
    logits = tiny.dense_logits(target, row)[-7:-1]
    assert torch.allclose(target.lm_head(drawn.states[1]), logits, atol=1e-3)


def test_texts_are_drawn_at_temperature_1_whatever_the_model_prefers(target):
    """Against the exact distribution of a first token; end tokens end nothing."""
    before, target.generation_config.top_k = target.generation_config.top_k, 1
    drawn = texts.sample(target, [[7]], 4000, 2, seed=0)
    assert target.generation_config.top_k == 1
    target.generation_config.top_k = before
    p = tiny.dense_logits(target, [7])[-1].double().softmax(-1)
    counts = torch.bincount(drawn.ids[:, 1], minlength=290).double()
    likely = p * 4000 > 5
    z = (counts - 4000 * p)[likely] / (4000 * p * (1 - p))[likely].sqrt()
    assert z.abs().max() < 5 and counts[p < 1e-6].sum() <= 1
    assert drawn.drawn == 2  # though 0, the end token, is among the first


def test_later_texts_do_without_kept_states(target, tmp_path, monkeypatch):
    settings = texts.Sampling(length=8, held_out=2, rows=70, seconds=None)
    show = lambda *_: None  # noqa: E731
    pool = texts.fill(tmp_path / "a", target, [[0]], settings, 0, show)
    monkeypatch.setattr(texts, "MOST_STATES", 64 * 8 * 32 * 4)
    less = texts.fill(tmp_path / "b", target, [[0]], settings, 0, show)
    assert [part.states is None for part in less.parts] == [False, True]
    assert [len(part) for part in pool.parts] == [62, 8]
    assert torch.equal(pool.parts[1].ids, less.parts[1].ids)
    recomputed = texts.target_states(target, less.parts[1])
    assert torch.allclose(recomputed, pool.parts[1].states, atol=1e-4)
    batches = pool.epoch(0, 4, seed=0)
    assert sorted(len(rows) for _, rows in batches) == [2] + [4] * 17
    seen = {(part, row) for part, rows in batches for row in rows.tolist()}
    assert len(seen) == 70


# Divergences and measures


def test_divergences_are_the_textbooks():
    log_p, log_q = (torch.randn(5, 9).log_softmax(-1) for _ in range(2))
    p, q = log_p.exp(), log_q.exp()
    assert torch.allclose(measures.kl(log_p, log_q), (p * (p / q).log()).sum(-1), atol=1e-6)
    chi2 = ((p - q) ** 2 / q).sum(-1)
    assert torch.allclose(measures.log_chi2(log_p, log_q).exp(), 1 + chi2, rtol=1e-5)


def test_a_clipped_chi2_still_has_a_gradient():
    log_p = torch.tensor([[0.5, 0.5 - 1e-9, 1e-9]]).log()
    logits = torch.tensor([[0.0, 0.0, -60.0]], requires_grad=True)
    loss = measures.log_chi2(log_p, logits.log_softmax(-1)).sum()
    loss.backward()
    assert loss.isfinite() and logits.grad[0, 2] < 0
    assert logits.grad.abs().sum() <= 2


@pytest.mark.parametrize("divergence", ["kl", "chi2"])
def test_gradients_in_chunks_are_those_of_the_whole(target, divergence, monkeypatch):
    loss = measures.LOSSES[divergence]
    draft = pruned(target, (1,))
    drawn = some_texts(target)
    states = texts.final_states(draft, drawn).flatten(0, 1)
    log_p = target.lm_head(drawn.states.flatten(0, 1)).log_softmax(-1).detach()
    whole = loss(log_p, draft.lm_head(states).log_softmax(-1)).mean()
    whole.backward()
    wanted = {name: p.grad.clone() for name, p in draft.named_parameters()}
    draft.zero_grad()
    monkeypatch.setattr(measures, "_LOGITS_AT_ONCE", 290 * 5)
    chunked = measures.backward(target, draft, drawn, loss)
    assert torch.allclose(chunked, whole.detach(), rtol=1e-5)
    for name, parameter in draft.named_parameters():
        assert torch.allclose(parameter.grad, wanted[name], atol=1e-5), name


def test_the_reported_fit_is_the_brute_force_one(target):
    draft = pruned(target, (0, 2))
    drawn = some_texts(target, rows=5)
    sums = []
    for ids, mask in zip(drawn.ids, drawn.mask, strict=True):
        row = ids[mask].tolist()
        tables = [tiny.dense_logits(m, row)[-7:-1].double().softmax(-1) for m in (target, draft)]
        for p, q in zip(*(table.tolist() for table in tables), strict=True):
            pairs = list(zip(p, q, strict=True))
            overlap = sum(min(pair) for pair in pairs)
            divergence = sum(a * math.log(a / b) for a, b in pairs)
            sums.append((overlap, divergence, 1 / sum(a * a / b for a, b in pairs)))
    wanted = [sum(column) / len(sums) for column in zip(*sums, strict=True)]
    assert len(sums) == 5 * 6
    assert measures.token_fit(target, draft, drawn) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_block_weights_are_ratios_of_joint_probabilities(family, monkeypatch):
    """By scoring the drawn blocks anew, without caches or padding."""
    target = target_of(family)
    draft = pruned(target, (0, 2))
    contexts = some_texts(target)
    drawn = []
    multinomial = torch.multinomial
    monkeypatch.setattr(torch, "multinomial", lambda *a: drawn.append(multinomial(*a)) or drawn[-1])
    log_w = measures._block_log_weights(target, draft, contexts)
    blocks = torch.cat(drawn, dim=1).view(3, -1, 4)
    assert log_w.shape == blocks.shape[:2] == (3, 16)
    for i in range(3):
        context = contexts.ids[i][contexts.mask[i]].tolist()
        for j in (0, 15):
            block = blocks[i, j].tolist()
            log_p, log_q = (
                tiny.dense_logits(model, context + block)[-5:-1]
                .log_softmax(-1)[range(4), block]
                .sum()
                for model in (target, draft)
            )
            assert log_w[i, j].item() == pytest.approx((log_p - log_q).item(), abs=1e-3)


def test_a_draft_that_is_the_target_fits_perfectly(target):
    drawn = some_texts(target, rows=4, length=9)
    fit = measures.measure(target, pruned(target, (0, 1, 2)), drawn, seed=0)
    assert fit.overlap == pytest.approx(1, abs=1e-4) and fit.kl == pytest.approx(0, abs=1e-4)
    assert fit.ess_token == pytest.approx(1, abs=1e-4)
    assert fit.ess_block == pytest.approx(1, abs=1e-4)


# Training, resuming, the folder


def test_training_brings_the_draft_nearer(made):
    out, report = made
    assert report.after.kl < 0.8 * report.before.kl
    assert report.after.overlap > report.before.overlap
    assert report.steps == 30 and report.sampled_tokens == 30 * 12
    assert report.trained_tokens == (3 * 30 + 22) * 12  # batches of 4 rows, and one of 2
    assert report.draft_parameters < report.target_parameters
    assert report == DistillReport.load(out)
    assert report.history[-1].step == 30
    assert not (out / recipe.WORK).exists()


def test_the_folder_is_a_draft_for_an_engine(made, target_folder):
    @smc_program
    def write():
        prompt("the cat")
        return gen(max_tokens=6)

    out, _ = made
    posterior = Engine(target_folder, out).run(write(), particles=4, block=3, seed=0)
    assert posterior.stats.drafted_tokens > 0
    assert {f.name for f in out.iterdir()} >= {"config.json", "tokenizer.json", "distill.json"}


def test_only_what_learns_has_moved(made, target):
    after, before = weights(made[0]), pruned(target, (0, 2)).state_dict()
    same = {name for name in after if torch.equal(after[name], before[name])}
    assert "model.embed_tokens.weight" in same
    assert not any("layers" in name for name in same)


@pytest.mark.parametrize("between_checkpoints", [0.0, 1e9])
def test_an_interrupted_training_ends_bit_for_bit_the_same(
    made, target_folder, tmp_path, monkeypatch, between_checkpoints
):
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", between_checkpoints)
    backward, calls = training.backward, []

    def failing(*arguments):
        calls.append(1)
        if len(calls) in (1, 9, 24):
            raise KeyboardInterrupt
        return backward(*arguments)

    monkeypatch.setattr(training, "backward", failing)
    out = tmp_path / "draft"
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            distill(target_folder, out, layers=(0, 2), steps=30, **QUICK)
        assert len(list((out / recipe.WORK).glob("checkpoint-*"))) == 1
        sampled = {f: f.stat().st_mtime_ns for f in (out / recipe.WORK / "texts").iterdir()}
    report = distill(target_folder, out, layers=(0, 2), steps=30, **QUICK)
    assert sampled and report.steps == 30 and len(calls) == 33
    ours, theirs = weights(out), weights(made[0])
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert (report.before, report.after) == (made[1].before, made[1].after)


def test_a_finished_folder_is_left_alone(made, target_folder, capsys):
    out, report = made
    times = {f: os.stat(f).st_mtime_ns for f in out.iterdir()}
    again = distill(target_folder, out, layers=[0, 2], steps=30, **{**QUICK, "progress": True})
    assert again == report and "left alone" in capsys.readouterr().out
    assert times == {f: os.stat(f).st_mtime_ns for f in out.iterdir()}


def test_another_configuration_is_refused(made, target_folder):
    out, _ = made
    with pytest.raises(ValueError, match=r"layers=\(0, 2\) \(now \(0, 1\)\).*another folder"):
        distill(target_folder, out, layers=(0, 1), steps=30, **QUICK)
    with pytest.raises(ValueError, match="seed=0"):
        distill(target_folder, out, layers=(0, 2), steps=30, seed=1, **QUICK)


def test_a_narrow_draft_learns_under_chi2_in_minutes(target, tmp_path):
    lines = ["the cat", "", "one two three"]
    report = distill(
        (target, tiny.tokenizer()),
        tmp_path / "draft",
        width=16,
        depth=1,
        minutes=0.05,
        prompts=lines,
        **{**QUICK, "divergence": "chi2"},
    )
    assert report.after.ess_token > report.before.ess_token
    assert report.seconds >= 3.0
    assert report.settings.train_embedding


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give either layers"),
        ({"layers": (0,), "width": 16, "depth": 1}, "give either layers"),
        ({"width": 16}, "both width and depth"),
        ({"layers": (0, 7)}, "from 0 to 2"),
        ({"layers": (2, 0)}, "increasing"),
        ({"layers": ()}, "from 0 to 2"),
        ({"width": 20, "depth": 1}, "no multiple of 8"),
        ({"width": 20, "depth": 1, "heads": 3}, "3 heads"),
        ({"width": 64, "depth": 1}, "from 1 to the target's 32"),
        ({"width": 16, "depth": 9}, "from 1 to its 3"),
        ({"layers": (0,), "minutes": 0}, "minutes=0"),
        ({"layers": (0,), "minutes": 1, "steps": 1}, "not both"),
        ({"layers": (0,), "steps": 0}, "steps=0"),
        ({"layers": (0,), "divergence": "tv"}, "kl or chi2"),
        ({"layers": (0,), "prompts": ["", " "]}, "no prompt"),
        ({"layers": (0,), "prompts": "/no/such/file"}, "cannot be read"),
        ({"layers": (0,), "length": 1000}, "context of 256"),
    ],
)
def test_bad_settings(target, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        distill((target, tiny.tokenizer()), tmp_path / "draft", **{**QUICK, **options})
    assert not list((tmp_path / "draft").glob("*"))


def test_bad_folders(target, target_folder, tmp_path):
    source = (target, tiny.tokenizer())
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ValueError, match="cannot write to the folder"):
        distill(source, file, layers=(0,), steps=1, **QUICK)
    with pytest.raises(ValueError, match="not empty"):
        distill(source, target_folder, layers=(0,), steps=1, **QUICK)


def test_bad_targets(target, tmp_path):
    options = {"layers": (0,), "steps": 1, **QUICK}
    with pytest.raises(ModelError, match="without a tokenizer"):
        distill((target, None), tmp_path / "a", **options)
    folder = tmp_path / "no-tokenizer"
    target.save_pretrained(folder)
    with pytest.raises(ModelError, match="tokenizer"):
        distill(folder, tmp_path / "b", **options)
    with pytest.raises(ModelError, match="capped"):
        distill((tiny.causal_lm("gemma2"), tiny.tokenizer()), tmp_path / "c", **options)
    nameless = target_of()
    nameless.config.num_hidden_layers = 5
    with pytest.raises(ModelError, match="no list of 5 layers"):
        distill((nameless, tiny.tokenizer()), tmp_path / "d", **options)


def test_time_that_is_enough_for_nothing(target, tmp_path):
    with pytest.raises(ModelError, match="give more"):
        distill((target, tiny.tokenizer()), tmp_path, layers=(0,), minutes=1e-6, **QUICK)


# The command line


def test_the_command(target_folder, tmp_path, capsys):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("the cat\none two\n")
    out = tmp_path / "draft"
    command = ["distill", "--target", str(target_folder), "--layers", "0,1", "--out", str(out)]
    command += ["--steps", "4", "--length", "9", "--prompts", str(prompts), "--batch", "2"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    for word in ("1 - TV", "ESS after a block", "before", "step time", "tokens"):
        assert word in shown
    saved = json.loads((out / "distill.json").read_text())
    assert saved["steps"] == 4 and saved["settings"]["layers"] == [0, 1]
    assert main(command) == 0
    assert "left alone" in capsys.readouterr().out
    assert main([*command, "--seed", "3"]) == 1
    assert "other settings: seed=0 (now 3)" in capsys.readouterr().err
