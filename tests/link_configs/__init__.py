"""Random legal configs, watched and stamped ones among them: is each one's text what its IR says?"""
