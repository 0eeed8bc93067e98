"""The program of `smcprog demo`: a review gets a sentiment, stars and a reason."""

from smcprog import choice, condition, factor, gen, lm, prompt, regex, smc_program

TEXT = "Great phone, bad battery"


@smc_program
def review(text: str) -> dict[str, object]:
    """Sentiment and stars that agree, and a sentence drawn from the squared model."""
    prompt(f"Review: {text}\nSentiment:")
    label = gen(choice(" positive", " negative")).strip()
    prompt("\nStars:")
    stars = int(gen(regex(" [1-5]")))
    condition((stars >= 3) == (label == "positive"))
    prompt("\nIn one sentence:")
    why = gen(lm**2, stop=".", max_tokens=40)
    factor(0.1 * len(set(why.split())))
    return {"label": label, "stars": stars, "why": why.strip()}
