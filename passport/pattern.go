package passport

import (
	"errors"
	"strings"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// pattern stands for one namespace, or for all that start with a prefix.
type pattern struct {
	text   string // with the leading slash, without the star
	prefix bool
}

// parsePattern reads "/name", "/prefix*" or "*", with or without the slash. A
// pattern that no namespace can match is malformed.
func parsePattern(text string) (pattern, error) {
	name, isPrefix := strings.CutSuffix(strings.TrimPrefix(text, "/"), "*")
	p := pattern{text: "/" + name, prefix: isPrefix}
	sample := p.text
	if isPrefix {
		if name == "" {
			return p, nil
		}
		sample += "x"
	}
	if strings.Contains(name, "*") {
		return pattern{}, errors.New("a pattern has one '*', at its end")
	}
	if err := wire.CheckNamespace(sample); err != nil {
		return pattern{}, err
	}
	return p, nil
}

func (p pattern) matches(namespace string) bool {
	if p.prefix {
		return strings.HasPrefix(namespace, p.text)
	}
	return namespace == p.text
}
