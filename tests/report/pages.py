"""Reading a report as a browser does, without one."""

import json
from html.parser import HTMLParser

# Attributes that make a browser fetch or follow something.
FETCHING = {"src", "srcset", "href", "action", "formaction", "data", "poster", "background", "cite", "ping"}


class Page(HTMLParser):
    """The parts of a page that the tests ask for.

    Attributes:
        tags: Every element's name, in order.
        text: What a reader reads, with single spaces.
        scripts: (attributes, content) of every script.
        styles: The content of every style element.
        links: (element, attribute, value) of everything that points elsewhere.
        handlers: Inline event handlers.
        policy: The content security policy.
    """

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.tags, self.scripts, self.styles, self.links, self.handlers = [], [], [], [], []
        self.ids, self.policy, self._inside, self._text = [], "", None, []
        self.feed(html)
        self.close()
        self.text = " ".join("".join(self._text).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        given = dict(attrs)
        if tag in ("script", "style"):
            self._inside = tag
            (self.scripts.append([given, ""]) if tag == "script" else self.styles.append(""))
        if tag == "meta" and given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"]
        self.ids += [given["id"]] if "id" in given else []
        self.links += [(tag, name, value) for name, value in attrs if name in FETCHING]
        self.handlers += [(tag, name) for name in given if name.startswith("on")]
        if tag in ("p", "td", "th", "li", "dd", "dt", "h1", "h2", "small", "summary", "div"):
            self._text.append(" ")

    def handle_endtag(self, tag):
        if tag == self._inside:
            self._inside = None

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[-1][1] += data
        elif self._inside == "style":
            self.styles[-1] += data
        else:
            self._text.append(data)

    @property
    def figures(self):
        """The figures by name. Refuses NaN and infinity, which are no JSON: a browser would."""
        (data,) = [content for attrs, content in self.scripts if attrs.get("id") == "figures"]
        return json.loads(data, parse_constant=lambda token: (_ for _ in ()).throw(ValueError(token)))
