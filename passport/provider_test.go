package passport

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

type fakeProvider struct {
	who *Identity
	err error
}

func (p fakeProvider) identify(context.Context, *http.Request) (*Identity, error) {
	return p.who, p.err
}

func TestFirstProviderThatKnowsTheCallerDecides(t *testing.T) {
	t.Parallel()
	a, b, away := &Identity{Subject: "a"}, &Identity{Subject: "b"}, errors.New("keys not to be had")
	for _, c := range []struct {
		providers []provider
		who       *Identity
		fails     bool
	}{
		{nil, nil, false},
		{[]provider{fakeProvider{}, fakeProvider{}}, nil, false},
		{[]provider{fakeProvider{}, fakeProvider{who: b}}, b, false},
		{[]provider{fakeProvider{who: a}, fakeProvider{who: b}}, a, false},
		{[]provider{fakeProvider{err: away}, fakeProvider{who: b}}, b, false}, // who is known needs nobody else
		{[]provider{fakeProvider{who: a}, fakeProvider{err: away}}, a, false},
		{[]provider{fakeProvider{}, fakeProvider{err: away}}, nil, true}, // the caller might have been known there
	} {
		p := &Standard{providers: c.providers}
		who, err := p.Identify(t.Context(), &http.Request{})
		if c.who == nil {
			require.Nil(t, who)
		} else {
			require.Equal(t, c.who.Subject, who.Subject)
		}
		if c.fails {
			require.ErrorIs(t, err, away)
		} else {
			require.NoError(t, err)
		}
	}
}
