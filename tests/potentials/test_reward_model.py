"""Rewards from sequence classifiers: against the model itself, one text at a time."""

import copy
import gc
import weakref

import numpy as np
import pytest
import torch
from tokenizers import normalizers
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
    pipeline,
)

from smcprog import PotentialError, check_potential, gen, lm, prompt, regex, reward, smc_program
from smcprog.inference.exact import enumerate_traces
from tests.gpu import tiny
from tests.inference import tables
from tests.inference.programs import one
from tests.inference.test_enumeration import check, masses

TEXTS = ["the cat", "a dog sat on the mat", "x", "one two three four five six seven"]
LABELS = {0: "negative", 1: "neutral", 2: "positive"}


def tokenizer(pad=True):
    made = PreTrainedTokenizerFast(
        tokenizer_object=tiny.tokenizer()._tokenizer, eos_token=tiny.END, model_max_length=10**9
    )
    if pad:
        made.pad_token = tiny.END
    return made


def bert(labels=3, **settings):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=290,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
        num_labels=labels,
        initializer_range=0.5,
        **settings,
    )
    return BertForSequenceClassification(config).eval()


def gpt2(pad=None):
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=290, n_embd=16, n_layer=1, n_head=2, n_positions=64, num_labels=1,
        initializer_range=0.5, pad_token_id=pad, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2ForSequenceClassification(config).eval()


CLASSIFIER = (bert(id2label=LABELS, label2id={v: k for k, v in LABELS.items()}), tokenizer())


def logits_of(model, text, *first):
    with torch.inference_mode():
        return model(**tokenizer()(*first, text, return_tensors="pt")).logits[0]


def test_the_log_probability_of_a_label():
    potential = reward(CLASSIFIER, label="positive")
    expected = [torch.log_softmax(logits_of(CLASSIFIER[0], t), -1)[2].item() for t in TEXTS]
    np.testing.assert_allclose(potential.log_potential(TEXTS, True), expected, atol=1e-5)
    assert reward(CLASSIFIER, label=2).log_potential(TEXTS, True)[0] == pytest.approx(expected[0])
    assert repr(potential) == "reward(BertForSequenceClassification, label='positive')"
    assert reward(CLASSIFIER, label="positive") == potential != reward(CLASSIFIER, label=0)
    check_potential(potential, texts=TEXTS)


def test_a_pair_of_texts():
    potential = reward(CLASSIFIER, "is it a cat?", label="positive", beta=2.0)
    logits = logits_of(CLASSIFIER[0], TEXTS[1], "is it a cat?")
    expected = 2 * torch.log_softmax(logits, -1)[2].item()
    assert potential.log_potential([TEXTS[1]], True)[0] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("pad", [None, 0])
def test_a_causal_reward_model(pad):
    model = gpt2(pad)
    potential = reward((model, tokenizer(pad is not None)))
    expected = [logits_of(model, text)[0].item() for text in TEXTS]
    np.testing.assert_allclose(potential.log_potential(TEXTS, True), expected, atol=1e-5)


def padded_by(token, side="right"):
    made = tokenizer(pad=False)
    made.pad_token, made.padding_side = token, side
    return made


def other_family(name, **settings):
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        name, vocab_size=290, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=32, max_position_embeddings=64, initializer_range=0.4, pad_token_id=0,
        **settings,
    )  # fmt: skip
    return AutoModelForSequenceClassification.from_config(config).eval()


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        (gpt2(0), padded_by(tiny.END, "left")),  # its positions are counted from the left
        (gpt2(0), padded_by(tiny.TURN_END)),  # not what the model takes for padding
        (other_family("convbert", embedding_size=32, num_labels=1), tokenizer()),
        (other_family("fnet", num_labels=1), tokenizer()),
        (other_family("nystromformer", num_labels=1), tokenizer()),
    ],
    ids=["left", "other token", "convbert", "fnet", "nystromformer"],
)
def test_no_padding_shows_in_a_value(model, tokens):
    expected = [logits_of(model, text)[0].item() for text in TEXTS]
    together = reward((model, tokens)).log_potential(TEXTS, True)
    np.testing.assert_allclose(together, expected, atol=1e-5)


def test_a_text_without_tokens_is_refused_in_any_company():
    for texts in ([""], ["", TEXTS[1]], [TEXTS[1], ""]):
        with pytest.raises(PotentialError, match="makes no token of the text ''"):
            reward((gpt2(0), tokenizer())).log_potential(texts, True)


def test_labels_that_do_not_exclude_each_other_and_regressions():
    model = bert(problem_type="multi_label_classification")
    found = reward((model, tokenizer()), label=1).log_potential(TEXTS, True)
    expected = [torch.nn.functional.logsigmoid(logits_of(model, t))[1].item() for t in TEXTS]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    model = bert(problem_type="regression")
    found = reward((model, tokenizer()), label=1).log_potential(TEXTS, True)
    np.testing.assert_allclose(found, [logits_of(model, t)[1].item() for t in TEXTS], atol=1e-5)


def test_a_pipeline_is_its_model_and_tokenizer():
    made = pipeline("text-classification", model=CLASSIFIER[0], tokenizer=CLASSIFIER[1])
    assert reward(made, label="positive") == reward(CLASSIFIER, label="positive")

    class Judge:
        """A function of the user's own that holds a model."""

        model, tokenizer = CLASSIFIER

        def __call__(self, text):
            return 2.0

    assert reward(Judge()).log_potential(["x"], True)[0] == 2.0


def test_nothing_is_truncated_by_what_a_tokenizer_holds():
    short = tokenizer()
    short._tokenizer.enable_truncation(max_length=2)
    (found,) = reward((CLASSIFIER[0], short), label=0).log_potential([TEXTS[3]], True)
    expected = torch.log_softmax(logits_of(CLASSIFIER[0], TEXTS[3]), -1)[0].item()
    assert found == pytest.approx(expected, abs=1e-5)


def test_another_tokenizer_makes_another_reward():
    replacing = tokenizer()
    replacing._tokenizer.normalizer = normalizers.Replace("cat", "dog")
    one_way, other = reward(CLASSIFIER, label=0), reward((CLASSIFIER[0], replacing), label=0)
    assert one_way != other
    assert one_way.log_potential(["the cat"], True) != other.log_potential(["the cat"], True)


def test_remembered_values_keep_no_model_in_memory():
    model = bert()
    judge = reward((model, tokenizer()), label=0)
    judge.log_potential(TEXTS, True)
    watched = weakref.ref(model)
    del model, judge
    gc.collect()
    assert watched() is None


def test_dropout_is_off_while_it_judges():
    model = bert(hidden_dropout_prob=0.5, classifier_dropout=0.5).train()
    (found,) = reward((model, tokenizer()), label=0).log_potential([TEXTS[0]], True)
    assert model.training
    expected = torch.log_softmax(logits_of(model.eval(), TEXTS[0]), -1)[0].item()
    assert found == pytest.approx(expected, abs=1e-5)


def test_a_part_that_is_frozen_stays_so():
    model = bert().train()
    model.bert.eval()
    reward((model, tokenizer()), label=0).log_potential(TEXTS, True)
    assert model.training and not model.bert.training


@pytest.mark.parametrize("padding", [0, 1])
def test_the_longest_text_where_positions_begin_after_the_padding(padding):
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=290, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=66, pad_token_id=padding,
    )  # fmt: skip
    model, longest = RobertaForSequenceClassification(config).eval(), 65 - padding
    judge = reward((model, tokenizer()), label=0)
    assert judge.log_potential(["x" * longest], True)[0] < 0
    with pytest.raises(PotentialError, match=rf"of {longest + 1} tokens .* than the {longest} "):
        judge.log_potential(["x" * (longest + 1)], True)


def test_folders_that_hold_no_classifier(tmp_path):
    tiny.causal_lm("llama").save_pretrained(tmp_path / "lm")
    bert().config.save_pretrained(tmp_path / "pickled")
    torch.save(bert().state_dict(), tmp_path / "pickled" / "pytorch_model.bin")
    for name, message in {
        "lm": "score.weight.*is it a sequence classifier",
        "pickled": "pickled",
    }.items():
        tokenizer().save_pretrained(tmp_path / name)
        with pytest.raises(PotentialError, match=message):
            reward(tmp_path / name, label=1).log_potential(["x"], True)


def test_models_by_path(tmp_path):
    for part in CLASSIFIER:
        part.save_pretrained(tmp_path)
    by_path = reward(tmp_path, label="neutral")
    expected = reward(CLASSIFIER, label="neutral").log_potential(TEXTS, True)
    np.testing.assert_allclose(by_path.log_potential(TEXTS, True), expected, atol=1e-6)
    assert by_path == reward(str(tmp_path), label="neutral")
    with pytest.raises(PotentialError, match="say one of the labels of .*'negative', 'neutral'"):
        reward(tmp_path).log_potential(["x"], True)
    with pytest.raises(PotentialError, match="no sequence classifier can be loaded"):
        reward(tmp_path / "missing", label=1).log_potential(["x"], True)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="say one of the labels of Bert.*'positive', or its num"):
        reward(CLASSIFIER, label="happy")
    with pytest.raises(ValueError, match=r"reward\(label=None\): say one of the labels"):
        reward(CLASSIFIER)
    with pytest.raises(ValueError, match="has one output, its score; leave the label out"):
        reward((gpt2(), tokenizer()), label="positive")
    with pytest.raises(TypeError, match="is no classifier; it has no labels"):
        reward(len, label="positive")
    with pytest.raises(TypeError, match="one text may stand before the drawn one"):
        reward(CLASSIFIER, "a", "b", label=0)
    with pytest.raises(ValueError, match="say one of the labels"):
        reward(CLASSIFIER, label=True)
    with pytest.raises(
        TypeError, match=r"reward\(\(BertForSequenceClassification, tokenizer\), ..."
    ):
        reward(CLASSIFIER[0], label=0)
    with pytest.raises(TypeError, match=r"a pair \(model, tokenizer\) of transformers, not \(Tok"):
        reward(CLASSIFIER[::-1], label=0)
    with pytest.raises(
        PotentialError, match=r"^a text of .* longer than the 64 that Bert.*'cat dog"
    ):
        reward(CLASSIFIER, label=0).log_potential(["cat dog " * 40], True)


def test_a_model_that_is_no_classifier():
    pair = (tiny.causal_lm("llama"), tokenizer())
    with pytest.raises(
        PotentialError, match=r"shape \(1, .*, 290\).*'the cat'.*no classifier of 2"
    ):
        reward(pair, label=1).log_potential(["the cat"], True)


def test_a_model_that_raises_shows_a_text(monkeypatch):
    broken = bert()

    def forward(**inputs):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(broken, "forward", forward)
    with pytest.raises(PotentialError, match="out of memory.*2 texts, the first of them 'the cat'"):
        reward((broken, tokenizer()), label=0).log_potential(["the cat", "a dog"], True)


def test_a_model_that_gives_nan():
    broken = bert()
    broken.classifier.bias.data.fill_(float("nan"))
    with pytest.raises(PotentialError, match="returned nan for the text 'the cat'"):
        reward((broken, tokenizer()), label=0).log_potential(["the cat"], True)


@pytest.mark.parametrize("block", [0, 1, 2])
@pytest.mark.parametrize("every", ["end", "block"])
def test_every_outcome(block, every):
    judge = reward(CLASSIFIER, "said:", label="positive", every=every)
    check(one(2.0, (judge, regex("[ab]+")), None, 3), block)


def test_the_truth():
    """gamma(text) is p(text) p(label | text)^beta."""
    engine = tables.engine()
    judge = reward(CLASSIFIER, "said:", label="positive", beta=0.5)
    plain = masses(enumerate_traces(one(1.0, (), None, 2), engine))
    weighted = masses(enumerate_traces(one(1.0, (judge,), None, 2), engine))
    expected = np.exp(judge.log_potential([text for text, _ in plain], True))
    found = [weighted[value] / plain[value] for value in plain]
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@smc_program
def praised(judge):
    prompt("Review: Great phone\nSentiment: positive\nIn one sentence:")
    return gen(lm, judge, stop=".", max_tokens=12)


def test_a_model_in_a_programs_arguments_is_not_copied(shipped_engine):
    judge = reward(CLASSIFIER, "x", label="positive", every="block")
    assert copy.deepcopy(judge) is judge
    posterior = shipped_engine.run(praised(judge), particles=8, seed=0)
    assert len(posterior.values) == 8
