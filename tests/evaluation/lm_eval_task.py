"""A local lm-eval task in GSM8K's shape: questions and answers in JSON lines, five shots, generated text, exact match.

Prompts are records of eight bytes, one after another, as the tiny model learnt them: a question is some records and the
key of one of them, its answer the value. So five shots and the question are one long list, and the score is not chance.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

NAME = "record_lookup"
RECORDS = 12
YAML = """\
task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {{train: {folder}/train.jsonl, test: {folder}/test.jsonl}}
training_split: train
fewshot_split: train
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
target_delimiter: ""
fewshot_delimiter: "\\n"
generation_kwargs: {{until: ["\\n"], do_sample: false, temperature: 0.0, max_gen_toks: 8}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
filter_list:
  - name: strict-match
    filter: [{{function: regex, regex_pattern: "([0-9]{{3}})"}}, {{function: take_first}}]
metadata: {{version: 1.0}}
"""


def write_task(folder: Path, questions: int, seed: int = 0) -> None:
    """Write the task, with as many test questions and five to learn from; no key stands in two questions."""
    dice = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    keys = ["".join(dice.choices(letters, k=3)) for _ in range(4 * RECORDS * (questions + 5))]
    fresh = iter(dict.fromkeys(keys))
    for name, count in (("train", 5), ("test", questions)):
        with (folder / f"{name}.jsonl").open("w") as file:
            for _ in range(count):
                records = {next(fresh): f"{dice.randrange(1000):03}" for _ in range(RECORDS)}
                key = dice.choice(list(records))
                question = "".join(f"{k}:{v}\n" for k, v in records.items()) + f"{key}:"
                file.write(json.dumps({"question": question, "answer": records[key]}) + "\n")
    (folder / f"{NAME}.yaml").write_text(YAML.format(name=NAME, folder=folder))
