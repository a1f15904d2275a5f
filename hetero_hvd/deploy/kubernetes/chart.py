"""The same manifests as a chart for Helm: what changes between releases is a value of it.

A chart is the manifests' text with marks in it, in whose place Helm's own words are put. So there
is one source of both, and a chart with its values as they are gives what the manifests are.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from hetero_hvd import __version__
from hetero_hvd.config.yaml_document import yaml_text
from hetero_hvd.deploy.checks import LABEL, MAX_NAME, NAME_ALLOWED
from hetero_hvd.deploy.folder import MARK, with_mark
from hetero_hvd.deploy.kubernetes.manifests import files
from hetero_hvd.deploy.kubernetes.options import MAX_AGENTS, KubernetesJob

RELEASE, IMAGE, COMMAND = "zz-release-zz", "zz-image-zz", "zz-command-zz"
GPU_AGENTS, CPU_AGENTS = 918_273_645, 918_273_646
"""Marks: nothing else in a manifest has these words and numbers."""

NUMBERS = {GPU_AGENTS: ".Values.gpuAgents", CPU_AGENTS: ".Values.cpuAgents"}
WORDS = {RELEASE: ".Release.Name", IMAGE: ".Values.image"}

COMMAND_LINES = """\
{{- range .Values.command }}
INDENT- {{ kindIs "string" . | ternary . (toJson .) | replace "$" "$$" | quote }}
{{- end }}"""
"""Kubernetes puts variables in place of `$(NAME)`; here each word means itself. Numbers of a values
file are floats for Helm, of which it would make words such as 1e+06."""

CHECK = f"""\
{{{{- if or (gt (len .Release.Name) {MAX_NAME}) (not (regexMatch "^{LABEL}$" .Release.Name)) }}}}
{{{{- fail "the release's name must be {NAME_ALLOWED}, at most {MAX_NAME} characters" }}}}
{{{{- end }}}}
"""
"""Helm takes names with dots and others, which no Service may have."""

NOTES = """\
Before the pods can start they need keys, once:
  hetero-hvd key cluster.key
  hetero-hvd key token
  kubectl create secret generic {{ .Release.Name }}-keys --from-file=cluster.key --from-file=token
Then: kubectl logs -f job/{{ .Release.Name }}-driver
A Job's pods cannot be changed: kubectl delete job {{ .Release.Name }}-driver before helm upgrade.
"""


def chart_files(job: KubernetesJob) -> dict[str, str | None]:
    """The files of a chart, by their path in it; None: there is no such file.

    Args:
        job: Gives the values as they are unless somebody says otherwise. Its name is the chart's;
            the release's name takes its place in all that is made.
    """
    marked = replace(
        job,
        name=RELEASE,
        image=IMAGE,
        command=(COMMAND,),
        num_gpu_agents=GPU_AGENTS if job.num_gpu_agents else 0,
        num_cpu_agents=CPU_AGENTS if job.num_cpu_agents else 0,
    )
    templates = {
        f"templates/{name}": None if text is None else _template(text)
        for name, text in files(marked).items()
    }
    values, schema = _values(job)
    return {
        "Chart.yaml": with_mark(yaml_text(_about(job))),
        "values.yaml": with_mark(yaml_text(values)),
        "values.schema.json": json.dumps(schema, indent=2) + "\n",
        "templates/NOTES.txt": f"{{{{- /* {MARK} */ -}}}}\n{CHECK}{NOTES}",
        **templates,
    }


def _about(job: KubernetesJob) -> dict[str, Any]:
    return {
        "apiVersion": "v2",
        "name": job.name,
        "description": "One training job on unequal machines: a driver and its agents",
        "type": "application",
        "version": __version__,
        "appVersion": __version__,
    }


def _values(job: KubernetesJob) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values, and the schema by which Helm refuses others."""
    values: dict[str, Any] = {"image": job.image, "command": list(job.command)}
    kinds: dict[str, Any] = {
        "image": {"type": "string", "minLength": 1},
        "command": {
            "type": "array",
            "minItems": 1,
            "items": {"type": ["string", "number", "boolean"]},
        },
    }
    counts = {"gpuAgents": job.num_gpu_agents, "cpuAgents": job.num_cpu_agents}
    for name, number in counts.items():
        if number and job.agents != "daemonset":  # whose number is that of the nodes
            values[name] = number
            kinds[name] = {"type": "integer", "minimum": 0, "maximum": MAX_AGENTS}
    schema = {
        "$comment": MARK,
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "required": sorted(values),
        "properties": kinds | {"global": {"type": "object"}},
        "additionalProperties": False,
    }
    return values, schema


def _template(text: str) -> str:
    """A manifest's text with Helm's words in the place of the marks."""
    text = text.replace("{{", '{{ "{{" }}')  # of a script
    text = re.sub(
        rf"^( *)- {COMMAND}$",
        lambda found: COMMAND_LINES.replace("INDENT", found[1]),
        text,
        flags=re.MULTILINE,
    )
    for number, value in NUMBERS.items():
        text = text.replace(str(number), f"{{{{ {value} }}}}")
    marks = "|".join(WORDS)
    return re.sub(
        rf"""(?P<quote>['"]?)(?P<word>[^\s'"]*(?:{marks})[^\s'"]*)(?P=quote)""",
        lambda found: f'"{_with_words(found["word"])}"',
        text,
    )


def _with_words(word: str) -> str:
    for mark, value in WORDS.items():
        word = word.replace(mark, f"{{{{ {value} }}}}")
    return word
