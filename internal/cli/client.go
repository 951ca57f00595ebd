package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	// callTime bounds a call, from the look-up of the name to the end of the answer.
	callTime = 15 * time.Second
	// maxAnswer bounds what is read of an answer, in bytes.
	maxAnswer = 64 << 20
)

// client asks one pinboard.
type client struct {
	base  *url.URL
	token string
	http  *http.Client
}

// newClient reads where to ask, and as whom.
func newClient(lookup func(string) (string, bool)) (*client, error) {
	text, _ := lookup("PINBOARD_URL")
	if text == "" {
		return nil, fmt.Errorf("PINBOARD_URL is not set: the URL of a pinboard, such as https://pinboard.example (%w)", errUsage)
	}
	base, err := url.Parse(text)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" || base.User != nil || base.RawQuery != "" || base.Fragment != "" {
		// It may hold a credential, by mistake, and so is not repeated.
		return nil, fmt.Errorf("PINBOARD_URL must be an http or https URL with a host and nothing besides a base path (%w)", errUsage)
	}
	token, _ := lookup("PINBOARD_TOKEN")
	if token == "" {
		return nil, fmt.Errorf("PINBOARD_TOKEN is not set: a token with the scope pinboard:operator (%w)", errUsage)
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, fmt.Errorf("PINBOARD_TOKEN must be printable ASCII without spaces (%w)", errUsage)
	}
	return &client{base: base, token: token, http: &http.Client{
		// The token is for that server alone.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// refusal is an answer that is not a success.
type refusal struct {
	status  int
	message string
	foreign bool // not pinboard's: there is no error in it
}

func (r *refusal) Error() string {
	switch {
	case r.foreign && r.status >= 300 && r.status < 400:
		return fmt.Sprintf("redirected (status %d): set PINBOARD_URL to where it leads", r.status)
	case r.foreign:
		return fmt.Sprintf("status %d without an error of pinboard's: is there a pinboard at PINBOARD_URL?", r.status)
	case r.status == http.StatusUnauthorized:
		return r.message + ": PINBOARD_TOKEN is not known there"
	}
	return r.message
}

func (r *refusal) exit() int {
	switch {
	case r.foreign:
		return Failed
	case r.status == http.StatusNotFound:
		return NotFound
	case r.status == http.StatusUnauthorized, r.status == http.StatusForbidden:
		return Denied
	}
	return Failed
}

// do sends a request; the answer is a success, whose body has to be closed.
func (c *client) do(ctx context.Context, method, path string, query url.Values, body any, header http.Header) (*http.Response, error) {
	var reader io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("ask %s: %w", path, err)
		}
		reader = bytes.NewReader(text)
	}
	target := c.base.JoinPath(path)
	target.RawQuery = query.Encode()
	r, err := http.NewRequestWithContext(ctx, method, target.String(), reader)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", path, err)
	}
	maps.Copy(r.Header, header)
	r.Header.Set("Authorization", "Bearer "+c.token)
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	res, err := c.http.Do(r)
	if err != nil {
		if fault, ok := errors.AsType[*url.Error](err); ok {
			err = fault.Err
		}
		return nil, fmt.Errorf("pinboard at %s does not answer: %w", c.base.Host, err)
	}
	if res.StatusCode == http.StatusOK {
		return res, nil
	}
	defer func() { _ = res.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	var said struct {
		Error string `json:"error"`
	}
	_ = json.Unmarshal(text, &said) // what is no JSON has no error
	return nil, &refusal{status: res.StatusCode, message: said.Error, foreign: said.Error == ""}
}

// get asks for something and reads it; text is the answer as it came.
func (c *client) get(ctx context.Context, path string, query url.Values, into any) (text json.RawMessage, err error) {
	return c.ask(ctx, http.MethodGet, path, query, nil, into)
}

func (c *client) ask(ctx context.Context, method, path string, query url.Values, body, into any) (text json.RawMessage, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	res, err := c.do(ctx, method, path, query, body, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	text, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the answer to %s: %w", path, err)
	case len(text) > maxAnswer:
		return nil, fmt.Errorf("the answer to %s is larger than %d bytes", path, maxAnswer)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return nil, fmt.Errorf("the answer to %s is not pinboard's: is there a pinboard at PINBOARD_URL?", path)
	}
	return text, nil
}
