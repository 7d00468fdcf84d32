"""Names the language labels that a document can carry, and checks given ones.

Two vocabularies are known: the 176 labels of fastText's lid.176 (ISO 639-1 codes where there are
some, else ISO 639-3 or the name of a Wikipedia) and labels of three letters and a script
(`fra_Latn`), as models of the GlotLID and NLLB family give them. `und` is undetermined in both. A
rule for `fra` would match no document that lid.176 calls `fr`, so a label outside both is an error
where the configuration is read, not a filter that silently never applies; where the model is known,
so is a label outside its own (`tasks.corpus.named_labels`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection

from llm_core.config import ConfigError

UNDETERMINED = "und"
OTHER_LANGUAGE = "other_language_frac"
"""Feature that the language stage measures where `language.windows` asks for it; null where a
document has no label, or fewer than two windows that are sure of theirs."""

_LID176 = """
af als am an ar arz as ast av az azb ba bar bcl be bg bh bn bo bpy br bs bxr ca cbk ce ceb ckb co cs cv cy da de diq
dsb dty dv el eml en eo es et eu fa fi fr frr fy ga gd gl gn gom gu gv he hi hif hr hsb ht hu hy ia id ie ilo io is it
ja jbo jv ka kk km kn ko krc ku kv kw ky la lb lez li lmo lo lrc lt lv mai mg mhr min mk ml mn mr mrj ms mt mwl my myv
mzn nah nap nds ne new nl nn no oc or os pa pam pfl pl pms pnb ps pt qu rm ro ru rue sa sah sc scn sco sd sh si sk sl
so sq sr su sv sw ta te tg th tk tl tr tt tyv ug uk ur uz vec vep vi vls vo wa war wuu xal xmf yi yo yue zh
"""  # noqa: E501
LID176_LABELS = frozenset(_LID176.split())

_OTHER = """
afr:af amh:am ara:ar arb:ar aze:az bel:be ben:bn bod:bo bos:bs bul:bg cat:ca ces:cs cze:cs chi:zh cmn:zh zho:zh cym:cy
wel:cy dan:da deu:de ger:de ell:el gre:el eng:en epo:eo est:et eus:eu baq:eu fas:fa per:fa pes:fa fin:fi fra:fr fre:fr
gle:ga glg:gl guj:gu heb:he iw:he hin:hi hrv:hr hun:hu hye:hy arm:hy ind:id in:id isl:is ice:is ita:it jpn:ja jav:jv
kan:kn kat:ka geo:ka kaz:kk khm:km kor:ko kur:ku lao:lo lat:la lav:lv lit:lt mal:ml mar:mr mkd:mk mac:mk mlt:mt mon:mn
msa:ms may:ms mya:my bur:my nep:ne nld:nl dut:nl nor:no nob:no nb:no nno:nn pan:pa pol:pl por:pt pus:ps ron:ro rum:ro
rus:ru san:sa sin:si slk:sk slo:sk slv:sl som:so spa:es sqi:sq alb:sq srp:sr swa:sw swe:sv tam:ta tel:te tgk:tg tgl:tl
fil:tl tha:th tur:tr uig:ug ukr:uk urd:ur uzb:uz vie:vi yid:yi yor:yo zh-cn:zh zh-tw:zh
"""  # noqa: E501
_OTHER_CODES = dict(pair.split(":") for pair in _OTHER.split())
"""Codes of the same languages in other standards, for the hint in an error."""
_WITH_SCRIPT = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}")


def check_label(label: str, where: str, given: Collection[str] | None = None) -> None:
    """Raise ConfigError unless a language model can give `label`; `where` is the setting that names
    it.

    given: the labels of the model that a run has; None accepts those of any.
    """
    if given is None:
        is_known = label in LID176_LABELS or _WITH_SCRIPT.fullmatch(label) is not None
    else:
        is_known = label in given
    if is_known or label == UNDETERMINED:
        return
    if label == "False":
        raise ConfigError(
            f"{where} names {label}, which is how YAML reads a bare no; write 'no' in quotes for"
            " Norwegian"
        )
    known = sorted(LID176_LABELS if given is None else given)
    if same := _of_same_language(label, known):
        raise ConfigError(
            f"{where} names {label}, which no document is labelled with; the label is"
            f" {' or '.join(same[:3])}"
        )
    if given is None:
        what, like = "a language label", "fr, or like fra_Latn with another model"
    else:
        # Four of them, from all over the alphabet.
        like = ", ".join(known[:: max(1, len(known) // 4)][:4])
        what = "a label of this run's language model"
    close = difflib.get_close_matches(label, known, n=2, cutoff=0.6)
    hint = f"did you mean {' or '.join(close)}?" if close else f"labels are like {like}"
    raise ConfigError(f"{where} names {label}, which is not {what}; {hint}")


def _of_same_language(label: str, known: Collection[str]) -> list[str]:
    """Known labels of the same language in other standards, whatever script or region follows."""
    written = label.lower().replace("_", "-")
    codes = {_OTHER_CODES.get(code, code) for code in (written, written.partition("-")[0])}
    codes |= {other for other, code in _OTHER_CODES.items() if code in codes}
    return [one for one in known if one.partition("_")[0] in codes]
