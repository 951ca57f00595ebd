package pinboard

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestACertificateNeedsItsKeyAndExcludesH2C(t *testing.T) {
	t.Parallel()
	env, err := ReadEnvironment(variables(map[string]string{"PINBOARD_TLS_CERT": "/c", "PINBOARD_TLS_KEY": "/k", "PINBOARD_H2C": "false"}))
	require.NoError(t, err)
	require.Equal(t, []string{"/c", "/k"}, []string{env.CertFile, env.KeyFile})
	require.False(t, env.H2C)
	env, err = ReadEnvironment(variables(map[string]string{"PINBOARD_H2C": "true"}))
	require.NoError(t, err)
	require.True(t, env.H2C)
	for want, changes := range map[string]map[string]string{
		"PINBOARD_TLS_KEY: is required with PINBOARD_TLS_CERT":  {"PINBOARD_TLS_CERT": "/c"},
		"PINBOARD_TLS_CERT: is required with PINBOARD_TLS_KEY":  {"PINBOARD_TLS_KEY": "/k", "PINBOARD_TLS_CERT": " "},
		"PINBOARD_H2C: is HTTP/2 without TLS, and PINBOARD_TLS": {"PINBOARD_TLS_CERT": "/c", "PINBOARD_TLS_KEY": "/k", "PINBOARD_H2C": "true"},
	} {
		_, err := ReadEnvironment(variables(changes))
		require.ErrorContains(t, err, want)
	}
}
