package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"
)

// FieldError says which field of a body is wrong, and how.
type FieldError struct {
	Field  string
	Reason string
}

func (e *FieldError) Error() string { return "field " + e.Field + ": " + e.Reason }

// object reads one JSON object field by field. Names match exactly, null counts
// as a wrong type, unknown fields are ignored. The first fault sticks in err,
// so that a parser can read all fields and look once.
type object struct {
	raw map[string]json.RawMessage
	err error
}

func parseObject(body []byte) (*object, error) {
	o := &object{}
	if err := unmarshal(body, &o.raw); err != nil {
		return nil, err
	}
	if o.raw == nil {
		return nil, errNotObject
	}
	return o, nil
}

var errNotObject = &FieldError{Field: "(body)", Reason: "must be a JSON object"}

// unmarshal decodes a whole body. Its errors tell where the body is malformed,
// but nothing of what is in it. Text that is not UTF-8 is refused because the
// decoder would make different texts equal.
func unmarshal(body []byte, into any) error {
	if !utf8.Valid(body) {
		return errors.New("the body is not UTF-8")
	}
	err := json.Unmarshal(body, into)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("the body is not valid JSON at byte %d", syntax.Offset)
	}
	if err != nil {
		return errNotObject
	}
	return nil
}

func (o *object) fail(field, reason string) {
	if o.err == nil {
		o.err = &FieldError{Field: field, Reason: reason}
	}
}

func (o *object) has(field string) bool { _, ok := o.raw[field]; return ok }

func (o *object) need(field string) bool {
	if !o.has(field) {
		o.fail(field, "is missing")
		return false
	}
	return true
}

// decode fills into from the field's value, and reports whether it could.
func decode[T any](o *object, field, want string, into *T) bool {
	raw := o.raw[field]
	if string(raw) == "null" || json.Unmarshal(raw, into) != nil {
		o.fail(field, "must be "+want)
		return false
	}
	return true
}

// text reads a required, non-empty string of at most limit bytes.
func (o *object) text(field string, limit int) (s string) {
	if !o.need(field) || !decode(o, field, "a string", &s) {
		return ""
	}
	if s == "" {
		o.fail(field, "must not be empty")
	}
	if len(s) > limit {
		o.fail(field, fmt.Sprintf("must be at most %d bytes", limit))
	}
	return s
}

// optionalText is text for a field that may be left out.
func (o *object) optionalText(field string, limit int) string {
	if !o.has(field) {
		return ""
	}
	return o.text(field, limit)
}

func (o *object) boolean(field string) (b bool) {
	if o.need(field) {
		decode(o, field, "true or false", &b)
	}
	return b
}

// amount reads a required finite number that is not negative. JSON has no
// infinity, and a number too large for a float64 does not decode.
func (o *object) amount(field string) (f float64) {
	if !o.need(field) || !decode(o, field, "a finite number", &f) {
		return 0
	}
	if f < 0 {
		o.fail(field, "must be at least 0")
	}
	return math.Abs(f) // -0 is 0, and so is its text
}

// texts reads a list of strings.
func (o *object) texts(field string) []string {
	// Pointers, because null would decode into a string without an error.
	var list []*string
	if !decode(o, field, "a list of strings", &list) {
		return nil
	}
	return o.noNulls(field, list)
}

// textLists reads an object of lists of strings.
func (o *object) textLists(field string) map[string][]string {
	var lists map[string][]*string
	if !decode(o, field, "an object of lists of strings", &lists) {
		return nil
	}
	out := make(map[string][]string, len(lists))
	for key, list := range lists {
		place := fmt.Sprintf("%s[%q]", field, key)
		if list == nil {
			o.fail(place, "must be a list of strings")
		}
		out[key] = o.noNulls(place, list)
	}
	return out
}

// textMap reads an object of strings.
func (o *object) textMap(field string) map[string]string {
	var texts map[string]*string
	if !decode(o, field, "an object of strings", &texts) {
		return nil
	}
	out := make(map[string]string, len(texts))
	for key, text := range texts {
		if text == nil {
			o.fail(fmt.Sprintf("%s[%q]", field, key), "must be a string")
			continue
		}
		out[key] = *text
	}
	return out
}

func (o *object) noNulls(place string, list []*string) []string {
	out := make([]string, len(list))
	for i, text := range list {
		if text == nil {
			o.fail(fmt.Sprintf("%s[%d]", place, i), "must be a string")
			continue
		}
		out[i] = *text
	}
	return out
}
