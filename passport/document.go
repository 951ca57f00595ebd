package passport

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"unicode/utf8"
)

// value is a JSON value that knows its place in the document, such as
// "providers[0].keys[0].token". A document is read into values instead of
// structs because encoding/json takes the last of two equal names, folds case,
// and cannot say where a fault is.
type value struct {
	place string
	data  any // nil, bool, string, json.Number, []value or []member
}

type member struct {
	name string
	value
}

// scan reads a document and collects everything that is wrong with it. No
// fault holds text of the document but the names of fields.
type scan struct {
	env    func(string) (string, bool)
	log    *logger
	faults []error
}

func (s *scan) fault(v value, format string, args ...any) {
	place := v.place
	if place == "" {
		place = "the document"
	}
	s.faults = append(s.faults, fmt.Errorf("%s: %s", place, fmt.Sprintf(format, args...)))
}

// read returns the document's value, or false if it is not JSON.
func (s *scan) read(document []byte) (value, bool) {
	if !utf8.Valid(document) {
		s.fault(value{}, "is not UTF-8")
		return value{}, false
	}
	// The decoder's own message would show a character of what is wrong, and
	// that may be a token.
	var whole json.RawMessage
	if syntax, ok := errors.AsType[*json.SyntaxError](json.Unmarshal(document, &whole)); ok {
		before := document[:min(int(syntax.Offset), len(document))]
		s.fault(value{}, "is not valid JSON at line %d, byte %d",
			bytes.Count(before, []byte("\n"))+1, len(before)-bytes.LastIndexByte(before, '\n')-1)
		return value{}, false
	}
	dec := json.NewDecoder(bytes.NewReader(document))
	dec.UseNumber() // claims reach workers with all their digits
	v, err := s.next(dec, "")
	if err != nil { // cannot be: the document is valid
		s.fault(value{}, "is not valid JSON")
		return value{}, false
	}
	return v, true
}

func (s *scan) next(dec *json.Decoder, place string) (value, error) {
	token, err := dec.Token()
	if err != nil {
		return value{}, err
	}
	v := value{place: place, data: token}
	switch token {
	case json.Delim('['):
		items := []value{}
		for dec.More() {
			item, err := s.next(dec, place+"["+strconv.Itoa(len(items))+"]")
			if err != nil {
				return value{}, err
			}
			items = append(items, item)
		}
		v.data = items
	case json.Delim('{'):
		if v.data, err = s.members(dec, place); err != nil {
			return value{}, err
		}
	default:
		return v, nil
	}
	_, err = dec.Token() // the closing bracket
	return v, err
}

func (s *scan) members(dec *json.Decoder, place string) ([]member, error) {
	members := []member{}
	seen := map[string]bool{}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return nil, err
		}
		name, _ := token.(string)
		v, err := s.next(dec, within(place, name))
		if err != nil {
			return nil, err
		}
		if seen[name] {
			s.fault(v, "is there twice")
		}
		seen[name] = true
		members = append(members, member{name, v})
	}
	return members, nil
}

var plainName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func within(place, name string) string {
	switch {
	case !plainName.MatchString(name):
		return place + "[" + strconv.Quote(name) + "]"
	case place == "":
		return name
	}
	return place + "." + name
}

// object is a JSON object with known fields.
type object struct {
	value
	fields map[string]value
}

// object reports a fault, and false, if v is no object; a fault for each field
// that is not a known one.
func (s *scan) object(v value, known ...string) (object, bool) {
	members, ok := v.data.([]member)
	if !ok {
		s.fault(v, "must be an object")
		return object{}, false
	}
	o := object{value: v, fields: map[string]value{}}
	allowed := map[string]bool{}
	for _, name := range known {
		allowed[name] = true
	}
	for _, m := range members {
		if !allowed[m.name] {
			s.fault(m.value, "is not a known field")
			continue
		}
		o.fields[m.name] = m.value
	}
	return o, true
}

// need returns a required field.
func (s *scan) need(o object, name string) (value, bool) {
	v, ok := o.fields[name]
	if !ok {
		s.fault(value{place: within(o.place, name)}, "is missing")
	}
	return v, ok
}

// text returns a string that is not empty, or reports a fault and returns "".
func (s *scan) text(v value) string {
	text, ok := v.data.(string)
	switch {
	case !ok:
		s.fault(v, "must be a string")
	case text == "":
		s.fault(v, "is empty")
	}
	return text
}

// needText returns a required string that is not empty.
func (s *scan) needText(o object, name string) string {
	if v, ok := s.need(o, name); ok {
		return s.text(v)
	}
	return ""
}

// list returns the items of a list, or reports a fault, and false.
func (s *scan) list(v value) ([]value, bool) {
	items, ok := v.data.([]value)
	if !ok {
		s.fault(v, "must be a list")
	}
	return items, ok
}

// optionalTexts returns a list of strings, nil if the field is left out.
func (s *scan) optionalTexts(o object, name string) []string {
	v, ok := o.fields[name]
	if !ok {
		return nil
	}
	texts := []string{}
	items, _ := s.list(v)
	for _, item := range items {
		texts = append(texts, s.text(item))
	}
	return texts
}

// plain returns a value as encoding/json would decode it, with json.Number for
// numbers.
func plain(v value) any {
	switch data := v.data.(type) {
	case []value:
		items := make([]any, len(data))
		for i, item := range data {
			items[i] = plain(item)
		}
		return items
	case []member:
		members := make(map[string]any, len(data))
		for _, m := range data {
			members[m.name] = plain(m.value)
		}
		return members
	}
	return v.data
}
