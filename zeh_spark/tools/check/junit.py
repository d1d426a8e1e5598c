"""Write a judgement as a JUnit report, which CI systems show. Pure."""

from __future__ import annotations

from xml.etree import ElementTree

from zeh_spark.errors import printable
from zeh_spark.tools.check.rules import Judgement, Verdict


def report(found: Judgement, feed: str) -> str:
    """Return the report: a test case for each rule.

    A failure fails, a rule that was not tested is skipped, and a note or a deviation is the output
    of a case that passes, because neither changes the command's exit code.
    """
    counts = {"failures": Verdict.FAILURE, "skipped": Verdict.SKIPPED}
    numbers = {name: str(found.count(verdict)) for name, verdict in counts.items()}
    suite = ElementTree.Element("testsuite", {"name": f"zeh-spark check {printable(feed)}"})
    suite.attrib |= numbers
    for finding in found:
        rule, said = finding.rule, printable(finding.found)
        case = ElementTree.SubElement(suite, "testcase", classname="zeh-spark.check", name=rule.id)
        text = f"{rule.title}\nfound: {said}\nsource: {rule.source}\ndo: {rule.remedy}"
        if finding.verdict is Verdict.FAILURE:
            ElementTree.SubElement(case, "failure", message=said).text = text
        elif finding.verdict is Verdict.SKIPPED:
            ElementTree.SubElement(case, "skipped", message=said)
        elif finding.told:
            output = f"{finding.verdict.value}: {text}"
            ElementTree.SubElement(case, "system-out").text = output
    suite.set("tests", str(len(suite)))
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)
