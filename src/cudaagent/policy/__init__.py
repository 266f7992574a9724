"""Who answers: models, endpoints, the scripted teacher, replay."""
