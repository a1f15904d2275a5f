"""The chart: Helm itself, as a library, takes it, and makes of it what the manifests are."""

import itertools
import json

import pytest
import yaml

from hetero_hvd.cli import main
from hetero_hvd.deploy.kubernetes.chart import chart_files
from hetero_hvd.deploy.kubernetes.options import KubernetesJob
from tests.deploy.test_kubernetes import IMAGE, WAYS, WORDS, of_kind, written

helm = pytest.importorskip("helm_python", reason="needs Helm: pip install 'hetero_hvd[dev]'")
WARNING = 2
SCRIPTS = {
    "templates": "x = '{{ .Values.image }}' or {{}}\n# {{- end }}\n",
    "quotes": 'x = "it\'s" # zz\n',
}


def rendered(folder, name="train", **values):
    """The documents that Helm would apply."""
    with helm.Chart.load(str(folder)) as chart:
        chart.validate_schema(values)
        texts = chart.render(values, name=name, namespace="default", is_install=True)
    found = [text for path, text in sorted(texts.items()) if path.endswith(".yaml")]
    return [one for one in itertools.chain(*map(yaml.safe_load_all, found)) if one]


def chart(folder, *flags, command=("train.py",)):
    """A chart that the command writes."""
    words = ["deploy", "kubernetes", str(folder), *IMAGE, "--helm", *flags, "--", *command]
    assert main(words) == 0
    return folder


def as_set(documents):
    """In whatever order."""
    return sorted(json.dumps(document, sort_keys=True) for document in documents)


@pytest.mark.parametrize("flags", WAYS.values(), ids=WAYS)
def test_helm_makes_of_it_what_the_manifests_are(tmp_path, flags):
    """With its own values, and with a release of the job's name; Helm has nothing to say of it."""
    folder = chart(tmp_path / "chart", *flags)
    assert as_set(rendered(folder)) == as_set(written(tmp_path / "plain", *flags))
    report = helm.lint(str(folder), strict=True)
    assert report["errors"] == []
    assert [one for one in report["messages"] if one["severity"] >= WARNING] == []


@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_script_is_no_template(tmp_path, kind):
    """Whatever is in it stays."""
    script = tmp_path / "s.py"
    script.write_text(SCRIPTS[kind])
    flags = ("--cpu", "1", "--script", str(script))
    (config,) = of_kind(rendered(chart(tmp_path / "chart", *flags)), "ConfigMap")
    assert config["data"]["s.py"] == SCRIPTS[kind]


def test_words_of_the_command_stay_as_they_are(tmp_path):
    """As the chart's own, and as somebody's values."""
    command = ("train.py", *WORDS, "{{ .Release.Name }}")
    plain = written(tmp_path / "plain", "--cpu", "1", command=command)
    own = rendered(chart(tmp_path / "own", "--cpu", "1", command=command))
    given = rendered(chart(tmp_path / "given", "--cpu", "1"), command=list(command))
    assert as_set(own) == as_set(given) == as_set(plain)


NUMBERS = {1000000: "1000000", 123456789012: "123456789012", -1: "-1", 0.1: "0.1", 2.5: "2.5"} | {
    True: "true",
    False: "false",
}
"""Of a values file, as they are written there. (What YAML takes for a number needs quotes to stay a
version or an octal one: Helm never sees what was written.)"""


def test_numbers_of_values_are_words_of_the_command(tmp_path):
    """As they are written."""
    plain = written(tmp_path / "plain", "--cpu", "1", command=("a.py", *NUMBERS.values()))
    found = rendered(chart(tmp_path / "chart", "--cpu", "1"), command=["a.py", *NUMBERS])
    assert as_set(found) == as_set(plain)


def test_values_and_the_release_change_what_they_say(tmp_path):
    """As the same job by other flags; numbers and truth values of `--set` are words."""
    folder = chart(tmp_path / "chart", "--gpu", "1", "--cpu", "1", "--volume", "1Gi")
    values = {"image": "other:2", "gpuAgents": 7, "cpuAgents": 0, "command": ["a.py", 3, True]}
    found = rendered(folder, name="digits", **values)
    words = ["deploy", "kubernetes", str(tmp_path / "plain"), "--image", "other:2"]
    words += ["--name", "digits", "--gpu", "7", "--cpu", "1", "--volume", "1Gi"]
    assert main([*words, "--", "a.py", "3", "true"]) == 0
    plain = [
        document
        for file in sorted((tmp_path / "plain").iterdir())
        for document in yaml.safe_load_all(file.read_text())
    ]
    (pool,) = [one for one in plain if one["metadata"]["name"] == "digits-cpu"]
    pool["spec"]["replicas"] = 0
    assert as_set(found) == as_set(plain)
    assert "zz-" not in json.dumps(found)


WRONG = {
    "no such value": {"gpuAgent": 1},
    "no command": {"command": []},
    "a number as text": {"cpuAgents": "many"},
    "fewer than none": {"cpuAgents": -1},
    "more than the command allows": {"cpuAgents": 1025},
    "no image": {"image": ""},
}


@pytest.mark.parametrize("values", WRONG.values(), ids=WRONG)
def test_wrong_values_are_refused(tmp_path, values):
    """By Helm, before anything is applied."""
    folder = chart(tmp_path / "chart", "--gpu", "1", "--cpu", "1")
    with pytest.raises(helm.HelmError):
        rendered(folder, **values)


def test_what_helm_says_at_the_end_names_the_release(tmp_path):
    """The Secret that is missing, and the Job."""
    with helm.Chart.load(str(chart(tmp_path / "chart", "--cpu", "1"))) as loaded:
        texts = loaded.render({}, name="digits", is_install=True)
    notes = [text for path, text in texts.items() if path.endswith("NOTES.txt")]
    assert all("secret generic digits-keys" in text for text in notes)
    job = KubernetesJob(name="a", image="b", command=("c",), num_cpu_agents=1)
    assert "{{ .Release.Name }}-keys" in chart_files(job)["templates/NOTES.txt"]


RELEASES = {
    "as long as may be": ("a" * 40, True),
    "too long": ("a" * 41, False),
    "a dot": ("a.b", False),
    "a digit first": ("1a", False),
}


@pytest.mark.parametrize(("name", "is_taken"), RELEASES.values(), ids=RELEASES)
def test_a_release_is_called_what_a_service_may_be(tmp_path, name, is_taken):
    """Helm itself takes more, and would leave half a release behind."""
    folder = chart(tmp_path / "chart", "--cpu", "1")
    if is_taken:
        assert rendered(folder, name=name)
    else:
        with pytest.raises(helm.HelmError, match="the release's name must be small letters"):
            rendered(folder, name=name)
